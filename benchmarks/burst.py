"""A burst, the same for whoever speaks it: what every request says, and what a row of a table says about it.

Needs no PyTorch, so that the clients of a server and other engines can be measured by it too.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

SENTENCE = "the quick brown fox jumps over the lazy dog while seven wizards quietly mix a box of toxic jelly "
SETTLED = 3  # chunks of every stream after which a burst is in its stride


@dataclass(frozen=True, slots=True)
class Row:
    """One burst. A step is the time between two chunks of a stream while all streams run; the real-time factor is the
    time of a stream over its audio; a stream is late if a listener who began with its first chunk heard a gap."""

    streams: int
    step_p50_ms: float
    step_p99_ms: float
    ttfb_p50_ms: float
    ttfb_p90_ms: float
    ttfb_p99_ms: float
    rtf: float
    audio_s_per_s: float
    late_streams: float
    prompt_tokens: float | None = None  # of each request; None where the engine does not tell
    cached_prefix_tokens: float | None = None


def text(serial: int, chars: int) -> str:
    """A text no other serial number begins with, always of the same length and the same words after its number."""
    return (f"{serial:06d} " + SENTENCE * (chars // len(SENTENCE) + 1))[:chars]


def row(heard: Sequence[Sequence[float]], step_seconds: float, **counts: float) -> Row:
    """The row of streams that were `heard`: for each the times of its chunks, in seconds since all were submitted.

    Every chunk holds `step_seconds` of audio.
    """
    begin = max(times[min(SETTLED, len(times)) - 1] for times in heard)
    end = min(times[-1] for times in heard)
    gaps = [b - a for times in heard for a, b in pairwise(times) if begin <= a and b <= end]
    gaps = sorted(gaps or [b - a for times in heard for a, b in pairwise(times)] or [times[0] for times in heard])
    starts = sorted(times[0] for times in heard)
    return Row(
        streams=len(heard),
        step_p50_ms=quantile(gaps, 0.5) * 1e3,
        step_p99_ms=quantile(gaps, 0.99) * 1e3,
        ttfb_p50_ms=quantile(starts, 0.5) * 1e3,
        ttfb_p90_ms=quantile(starts, 0.9) * 1e3,
        ttfb_p99_ms=quantile(starts, 0.99) * 1e3,
        rtf=statistics.median(times[-1] / (len(times) * step_seconds) for times in heard),
        audio_s_per_s=sum(map(len, heard)) * step_seconds / max(times[-1] for times in heard),
        late_streams=sum(late(times, [step_seconds] * len(times)) for times in heard),
        **counts,
    )


def late(times: Sequence[float], seconds: Sequence[float]) -> bool:
    """Whether playback that began with the first chunk ran dry, given when each came and what it holds."""
    played = times[0]
    for time, length in zip(times, seconds, strict=True):
        if time > played:
            return True
        played += length
    return False


def playback_end(times: Sequence[float], seconds: Sequence[float]) -> float:
    """When a listener who began with the first chunk has heard the last, gaps included."""
    played = times[0]
    for time, length in zip(times, seconds, strict=True):
        played = max(played, time) + length
    return played


def median(rows: Sequence[Row]) -> Row:
    """Each column's median; they are bursts of the same kind."""
    columns: dict[str, Any] = {}
    for field in fields(Row):
        values = [getattr(row, field.name) for row in rows]
        columns[field.name] = None if None in values else statistics.median(values)
    return Row(**columns)


def quantile(ordered: Sequence[float], q: float) -> float:
    """The value at share `q` of an ascending, non-empty sequence; always one of its own."""
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


HEADINGS = (
    f"{'streams':>7} {'step p50':>9} {'p99':>8} {'TTFB p50':>9} {'p90':>8} {'RTF':>7} {'audio-s/s':>9} {'late':>5}"
)


def line(row: Row) -> str:
    """A row as it is printed under HEADINGS."""
    return (
        f"{row.streams:7.0f} {row.step_p50_ms:6.2f} ms {row.step_p99_ms:5.1f} ms {row.ttfb_p50_ms:6.1f} ms"
        f" {row.ttfb_p90_ms:5.1f} ms {row.rtf:7.4f} {row.audio_s_per_s:9.1f} {row.late_streams:5.0f}"
    )
