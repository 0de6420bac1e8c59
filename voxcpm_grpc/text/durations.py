"""Durations in messages for people."""

from __future__ import annotations

# Each unit begins at so many seconds, and has its number in a second and its name.
UNITS = ((0.1, 1.0, "s"), (1e-4, 1e3, "ms"), (1e-7, 1e6, "µs"))


def duration_text(seconds: float) -> str:
    """A duration with its unit and three digits at most; a short one is not 0: 90 s, 0.25 s, 1.5 ms, 10 ns."""
    if seconds == 0 or abs(seconds) >= 100:
        return f"{seconds:.0f} s"
    for least, scale, unit in UNITS:
        if abs(seconds) >= least:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
