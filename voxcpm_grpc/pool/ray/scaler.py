"""The number of engines that a pool should have, computed from its load. Uses no clock, no torch and no cluster."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

MAX_USE = 0.8  # this share of all slots may be in use after a pool shrinks


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The operator's limits for the number of engines, and for the speed of changes."""

    min_engines: int
    max_engines: int
    grow_seconds: float
    """Streams that wait this long for a slot start more engines."""
    shrink_seconds: float
    """Engines that were not needed for this long are stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load of a pool at one moment."""

    engines: int
    """Engines that take calls or will take them: those that start are included, those that drain are not."""
    starting: int
    """The part of `engines` that does not take calls yet."""
    streams: int
    """Streams in progress on all engines, without those whose clients do not read."""
    waiting: int
    """The part of `streams` that has no slot yet; 0 while an engine has a free slot for another stream."""
    slots: int
    """Slots of one engine."""


class Scaler:
    """Decides the number of engines from a series of loads, several of them within the shorter of its two times.

    It grows once streams have waited for `grow_seconds` without a pause, by as many engines as they would fill. Engines
    that start count as capacity, so that it answers one burst once. It shrinks to the largest number of engines that
    was needed at any moment of the last `shrink_seconds`.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._waiting_since: float | None = None
        self._started: float | None = None
        # The newest is last, and each need is greater than all after it.
        self._needs: deque[tuple[float, int]] = deque()

    def wanted(self, load: Load, now: float) -> int:
        """Return the number of engines to have. `now` is the time of a monotonic clock in seconds."""
        needed = self._most_needed(load, now)
        wanted = load.engines
        if missing := self._missing(load, now):
            wanted += missing
        elif needed < load.engines:
            wanted = needed
        return min(max(wanted, self._bounds.min_engines), self._bounds.max_engines)

    def _missing(self, load: Load, now: float) -> int:
        """The number of engines that streams which have waited too long would fill."""
        unserved = load.waiting - load.starting * load.slots
        if unserved <= 0:
            self._waiting_since = None
            return 0
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < self._bounds.grow_seconds:
            return 0
        return math.ceil(unserved / load.slots)

    def _most_needed(self, load: Load, now: float) -> int:
        """The most engines that were needed within `shrink_seconds`; all engines before that time has passed once."""
        if self._started is None:
            self._started = now
        need = math.ceil(load.streams / (load.slots * MAX_USE))
        while self._needs and self._needs[-1][1] <= need:
            self._needs.pop()
        self._needs.append((now, need))
        while self._needs[0][0] < now - self._bounds.shrink_seconds:
            self._needs.popleft()
        has_history = now - self._started >= self._bounds.shrink_seconds
        return self._needs[0][1] if has_history else load.engines
