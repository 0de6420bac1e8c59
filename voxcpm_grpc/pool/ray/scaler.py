"""How many engines a pool should have, from what waits and what runs. No clock of its own, no torch, no cluster."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

FULL = 0.8  # share of the slots in use above which one engine fewer would soon be one too few


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What the operator allows, and how soon."""

    min_engines: int
    max_engines: int
    grow_seconds: float
    """Streams that wait this long for a slot call for more engines."""
    shrink_seconds: float
    """Engines that were not needed for this long may go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a pool is busy with at one moment."""

    engines: int
    """Engines that take calls or will: those that start count, those that drain do not."""
    starting: int
    """Of `engines`, those that take no calls yet."""
    streams: int
    """Streams under way on all engines."""
    waiting: int
    """Of `streams`, those that have no slot yet; none as long as an engine would take another one at once."""
    slots: int
    """Streams that one engine speaks at once."""


class Scaler:
    """Decides from one `Load` after the other. Ask it at least a few times within the shorter of its two times.

    Grows by as many engines as what waits would fill, once something has waited for `grow_seconds` without a pause;
    engines that start are counted on, so that one burst is answered once. Shrinks to the most that was needed at any
    moment of the last `shrink_seconds`.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._waiting_since: float | None = None
        self._watched_since: float | None = None
        self._needs: deque[tuple[float, int]] = deque()  # newest last, each greater than all after it

    def wanted(self, load: Load, now: float) -> int:
        """The number of engines to have; `now` are seconds of a clock that never goes back."""
        idle_need = self._most_needed(load, now)
        wanted = load.engines
        if short := self._short(load, now):
            wanted += short
        elif idle_need < load.engines:
            wanted = idle_need
        return min(max(wanted, self._bounds.min_engines), self._bounds.max_engines)

    def _short(self, load: Load, now: float) -> int:
        """Engines that are missing for what has waited too long."""
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
        """The most engines that were needed within `shrink_seconds`; all there are, if it was not watched that long."""
        if self._watched_since is None:
            self._watched_since = now
        need = math.ceil(load.streams / (load.slots * FULL))
        while self._needs and self._needs[-1][1] <= need:
            self._needs.pop()
        self._needs.append((now, need))
        while self._needs[0][0] < now - self._bounds.shrink_seconds:
            self._needs.popleft()
        watched_long = now - self._watched_since >= self._bounds.shrink_seconds
        return self._needs[0][1] if watched_long else load.engines
