"""The search for the largest number of listeners that a server serves within each bound on the time to first audio."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.serving import rows
from benchmarks.serving.loads import LoadRunner
from benchmarks.serving.rows import Row

START = 0.7  # the first trial has so many listeners for each second of audio per second
BEYOND = 1.1  # more than so many are not tried at first: a short closed loop may measure a little less than is possible
PRECISION = 0.04  # the search ends when the two counts around the result differ by at most this share


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The result for one bound.

    listeners: the largest number that was served, below the smallest that was not. too_many: the smallest number that
    was not served; None if every trial was.
    """

    ttfb_ms: float
    listeners: int
    too_many: int | None

    @property
    def settled(self) -> bool:
        """True if the two counts are so near to each other that no further trial is needed."""
        return self.too_many is not None and self.too_many - self.listeners <= max(1, PRECISION * self.too_many)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The parameters of all trials.

    bounds: on the time until the first sound is heard, in ms. settle: seconds of a trial before requests count.
    seconds: the least time in which requests count. requests: the least number of requests that count, unless that
    takes more than three times `seconds`. budget: seconds for all trials.
    """

    bounds: Sequence[float]
    settle: float
    seconds: float
    requests: int
    budget: float

    def seconds_of(self, listeners: int, utterance: float) -> float:
        """The seconds in which requests of that many listeners count. utterance: seconds of audio of a request."""
        enough = min(self.requests * utterance / listeners, max(3 * self.seconds, utterance))
        return max(self.seconds, enough)


def served(row: Row, ttfb_ms: float) -> bool:
    """True if a trial served all its listeners within a bound."""
    return row.audible_p99_ms <= ttfb_ms and not (row.late_streams or row.refused or row.failed)


def capacity(trials: Sequence[Row], ttfb_ms: float) -> Capacity:
    """The result of the trials for a bound. A count that was served is ignored if a smaller one was not."""
    too_many = min((int(row.level) for row in trials if not served(row, ttfb_ms)), default=None)
    listeners = [int(row.level) for row in trials if too_many is None or row.level < too_many]
    return Capacity(ttfb_ms=ttfb_ms, listeners=max(listeners, default=0), too_many=too_many)


def next_count(trials: Sequence[Row], bounds: Sequence[float], ceiling: float) -> int | None:
    """The number of listeners to try next; None if every bound is settled.

    It is the middle of the widest interval between a count that was served and one that was not. `ceiling` is taken as
    the count that is not served until a trial shows one.
    """
    if not trials:
        return max(1, round(START / BEYOND * ceiling))
    gaps = []
    for one in (capacity(trials, bound) for bound in bounds):
        if not one.settled:
            top = one.too_many or max(ceiling, 1.2 * one.listeners)
            gaps.append((top - one.listeners, max(one.listeners + 1, int(one.listeners + top) // 2)))
    return max(gaps)[1] if gaps else None


def search(loads: LoadRunner, utterance: float, plan: Plan, audio_s_per_s: float) -> Iterator[Row]:
    """Yield the row of each trial until every bound is settled or the time is up.

    utterance: seconds of audio of a request. audio_s_per_s: audio that the server makes per second at saturation.
    """
    trials: list[Row] = []
    end, longest = time.monotonic() + plan.budget, 0.0
    while (count := next_count(trials, plan.bounds, BEYOND * audio_s_per_s)) is not None:
        began = time.monotonic()
        if began + longest > end:
            return
        seconds = plan.seconds_of(count, utterance)
        calls = loads.listening(count, utterance, settle=plan.settle, seconds=seconds)
        trials.append(rows.row("listening", count, calls))
        longest = max(longest, time.monotonic() - began)
        yield trials[-1]


def outcome(saturation: Row, trials: Sequence[Row], plan: Plan) -> dict[str, Any]:
    """The part of the table that holds the trials and their results."""
    return {
        "saturation": asdict(saturation),
        "capacities": [asdict(capacity(trials, bound)) for bound in plan.bounds],
        "trials": [asdict(row) for row in sorted(trials, key=lambda row: row.level)],
    }
