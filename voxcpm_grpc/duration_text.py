"""Durations in messages for people."""

from __future__ import annotations


def duration_text(seconds: float) -> str:
    """A duration with its unit, exact to two digits at the least: 90 s, 2.5 s, 40 ms, 0.25 ms, 10 ns."""
    size = abs(seconds)
    if size >= 1 or not size:
        return f"{seconds:.0f} s" if size >= 10 else f"{seconds:.1f}".removesuffix(".0") + " s"
    for unit, scale in (("ms", 1e3), ("µs", 1e6)):
        if size * scale >= 0.1:
            return f"{seconds * scale:.2g} {unit}" if size * scale < 10 else f"{seconds * scale:.0f} {unit}"
    return f"{seconds * 1e9:.2g} ns"
