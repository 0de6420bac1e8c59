"""The estimate of the wait for a slot."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

from voxcpm_grpc.ipc.messages import EngineStats

MEMORY = 0.95  # the weight that an observation keeps with each later one: about the last 20 count
MIN_STEPS = 16.0  # fewer observed steps tell nothing, such as those of the warm-up request
LEAD_SECONDS = 2.0  # of audio, with which a stream gives its slot to a new one


class StepTime:
    """The time in a slot for each estimated step, as an average over the requests that ended last.

    It divides by the estimate of the steps, not by the steps made, so that a bias of the estimates cancels out.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._steps = 0.0
        self._known = False

    def observe(self, seconds: float, steps: float) -> None:
        """Count a request that has ended: its time in a slot, and the steps that it was estimated to take."""
        self._seconds = self._seconds * MEMORY + seconds
        self._steps = self._steps * MEMORY + steps
        self._known = self._known or self._steps >= MIN_STEPS

    @property
    def seconds(self) -> float | None:
        """The average; None while too little is known."""
        return self._seconds / self._steps if self._known else None


class Capacity:
    """The streams whose audio an engine makes in real time, as an average over its latest work."""

    def __init__(self, chunk_seconds: float) -> None:
        """`chunk_seconds` is the audio of a chunk."""
        self._chunk_seconds = chunk_seconds
        self._audio = 0.0
        self._seconds = 0.0

    def observe(self, before: EngineStats, after: EngineStats) -> None:
        """Count the work of an engine between two reports."""
        self._audio = self._audio * MEMORY + (after.stats.chunks - before.stats.chunks) * self._chunk_seconds
        self._seconds = self._seconds * MEMORY + after.step_seconds - before.step_seconds

    def seconds_to_lead(self, streams: int) -> float:
        """The time after which each of so many streams is far enough ahead to give its slot to a new one."""
        spare = self._audio - streams * self._seconds
        return LEAD_SECONDS * streams * self._seconds / spare if spare > 0 else math.inf


def seconds_until_slot(running: Iterable[float], waiting: Iterable[float], slots: int) -> float:
    """The time after which a request at the end of the queue gets a slot.

    running, waiting: the estimated time in a slot of each request that has one, and of each one in the queue
    """
    ahead = sorted(running)
    ends = ahead[:slots] + [0.0] * (slots - len(ahead))
    heapq.heapify(ends)
    for seconds in (*ahead[slots:], *waiting):  # those beyond the slots are swapped out
        heapq.heapreplace(ends, ends[0] + seconds)
    return ends[0]
