"""The estimate of the wait for a slot."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

MEMORY = 0.95  # the weight that an observation keeps with each later one: about the last 20 count
MIN_STEPS = 16.0  # fewer observed steps tell nothing, such as those of the warm-up request


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


def steps_until_slot(running: Iterable[float], waiting: Iterable[float], slots: int) -> float:
    """The steps after which a request at the end of the queue gets a slot.

    running, waiting: estimated steps that each request in a slot and each request in the queue still takes
    """
    ahead = sorted(running)
    ends = ahead[:slots] + [0.0] * (slots - len(ahead))
    heapq.heapify(ends)
    for steps in (*ahead[slots:], *waiting):  # those beyond the slots are swapped out
        heapq.heapreplace(ends, ends[0] + steps)
    return ends[0]
