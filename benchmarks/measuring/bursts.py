"""Rows of a burst: many requests that are submitted at once.

Needs no PyTorch, so that the environment of another engine can import it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

from benchmarks.measuring.statistics import late, quantile

SETTLED = 3  # chunks of every stream before steps are measured


@dataclass(frozen=True, slots=True)
class Row:
    """One burst.

    A step is the time between two chunks of a stream while all streams run. The real-time factor is the time of a
    stream over the length of its audio. A stream is late if playback that begins with its first chunk runs out of
    audio. Token counts are those of one request, None if the engine does not report them.
    """

    streams: int
    step_p50_ms: float
    step_p99_ms: float
    ttfb_p50_ms: float
    ttfb_p90_ms: float
    ttfb_p99_ms: float
    rtf: float
    audio_s_per_s: float
    late_streams: float
    prompt_tokens: float | None = None
    cached_prefix_tokens: float | None = None


def row(arrivals: Sequence[Sequence[float]], step_seconds: float, **counts: float) -> Row:
    """The row of a burst.

    arrivals: for each stream, the times of its chunks, in seconds since the submission. step_seconds: audio of a chunk.
    """
    begin = max(times[min(SETTLED, len(times)) - 1] for times in arrivals)
    end = min(times[-1] for times in arrivals)
    gaps = [b - a for times in arrivals for a, b in pairwise(times) if begin <= a and b <= end]
    gaps = sorted(gaps or [b - a for times in arrivals for a, b in pairwise(times)] or [times[0] for times in arrivals])
    starts = sorted(times[0] for times in arrivals)
    return Row(
        streams=len(arrivals),
        step_p50_ms=quantile(gaps, 0.5) * 1e3,
        step_p99_ms=quantile(gaps, 0.99) * 1e3,
        ttfb_p50_ms=quantile(starts, 0.5) * 1e3,
        ttfb_p90_ms=quantile(starts, 0.9) * 1e3,
        ttfb_p99_ms=quantile(starts, 0.99) * 1e3,
        rtf=statistics.median(times[-1] / (len(times) * step_seconds) for times in arrivals),
        audio_s_per_s=sum(map(len, arrivals)) * step_seconds / max(times[-1] for times in arrivals),
        late_streams=sum(late(times, [step_seconds] * len(times)) for times in arrivals),
        **counts,
    )


def median(rows: Sequence[Row]) -> Row:
    """The median of each column over bursts of the same size."""
    columns: dict[str, Any] = {}
    for field in fields(Row):
        values = [getattr(row, field.name) for row in rows]
        columns[field.name] = None if None in values else statistics.median(values)
    return Row(**columns)


HEADINGS = (
    f"{'streams':>7} {'step p50':>9} {'p99':>8} {'TTFB p50':>9} {'p90':>8} {'RTF':>7} {'audio-s/s':>9} {'late':>5}"
)


def line(row: Row) -> str:
    """A row under HEADINGS."""
    return (
        f"{row.streams:7.0f} {row.step_p50_ms:6.2f} ms {row.step_p99_ms:5.1f} ms {row.ttfb_p50_ms:6.1f} ms"
        f" {row.ttfb_p90_ms:5.1f} ms {row.rtf:7.4f} {row.audio_s_per_s:9.1f} {row.late_streams:5.0f}"
    )
