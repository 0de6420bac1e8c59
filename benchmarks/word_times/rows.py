"""The errors of the times of words, as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.word_times.calls import Spoken


@dataclass(frozen=True, slots=True)
class Row:
    """Errors are distances from the true times in ms, of the starts and the ends of all words.

    lag: seconds of speech that were sent after the end of a word when its times arrived
    cpu: seconds of CPU time of the aligner's process for a second of speech; 0 without one
    """

    mode: str
    sentences: int
    words: int
    estimated: int
    median_ms: float
    p95_ms: float
    most_ms: float
    starts_median_ms: float
    starts_p95_ms: float
    ends_median_ms: float
    ends_p95_ms: float
    lag_median_ms: float
    lag_p95_ms: float
    cpu: float


def row(mode: str, calls: Sequence[Spoken], cpu_seconds: float) -> Row:
    starts = np.array([abs(word.start - word.true_start) for call in calls for word in call.words]) * 1e3
    ends = np.array([abs(word.end - word.true_end) for call in calls for word in call.words]) * 1e3
    lags = np.array([word.lag for call in calls for word in call.words]) * 1e3
    both = np.concatenate([starts, ends])
    return Row(
        mode=mode,
        sentences=len(calls),
        words=len(starts),
        estimated=sum(word.estimated for call in calls for word in call.words),
        median_ms=float(np.median(both)),
        p95_ms=float(np.percentile(both, 95)),
        most_ms=float(both.max()),
        starts_median_ms=float(np.median(starts)),
        starts_p95_ms=float(np.percentile(starts, 95)),
        ends_median_ms=float(np.median(ends)),
        ends_p95_ms=float(np.percentile(ends, 95)),
        lag_median_ms=float(np.median(lags)),
        lag_p95_ms=float(np.percentile(lags, 95)),
        cpu=cpu_seconds / sum(call.seconds for call in calls),
    )
