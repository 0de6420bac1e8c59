"""Estimates of waits: for a place in the queue, and for an engine that restarts."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections.abc import Iterable
from typing import NamedTuple

from voxcpm_grpc.ipc.messages import EngineStats

MEMORY = 0.95  # an observation keeps this weight with each later one: about the last 20 count
MIN_STEPS = 16.0  # fewer observed steps tell nothing, such as those of the warm-up request
LEAD_SECONDS = 2.0  # seconds of audio with which a stream gives its slot to a new one


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


class Work(NamedTuple):
    """Streams that can run, those of them without a slot so far, and the outstanding steps."""

    streams: int
    waiting: int
    steps: float


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


# An engine that was never started here is expected to start in this time. The second start is expected to take no
# longer, because the first one may compile kernels and read files from a disk.
UNKNOWN_SECONDS = 15.0
OVERDUE = 0.1  # a start that takes longer than expected is expected to take this share of the time so far still


class Restarts:
    """The number and the expected time of the restarts of one replica. Belongs to one event loop.

    count: the engines that have replaced a lost one
    start_seconds: the expected duration of the next start, which is that of the latest one
    """

    def __init__(self) -> None:
        self.count = 0
        self.start_seconds = UNKNOWN_SECONDS
        self._first = True
        self._since: float | None = None  # seconds of the event loop's clock
        self._seconds = UNKNOWN_SECONDS

    def started(self, seconds: float) -> None:
        """An engine has started within so many seconds."""
        self.start_seconds = min(seconds, UNKNOWN_SECONDS) if self._first else seconds
        self._first = False

    def expect(self, seconds: float) -> None:
        """The next engine is expected to be ready in `seconds` from now; never if they are infinite."""
        self._since, self._seconds = asyncio.get_running_loop().time(), seconds

    @property
    def seconds_left(self) -> float:
        """The expected time until the next engine is ready; infinity if none will be. Valid while there is none."""
        elapsed = 0.0 if self._since is None else asyncio.get_running_loop().time() - self._since
        return max(self._seconds - elapsed, OVERDUE * elapsed)
