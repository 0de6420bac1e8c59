"""A queue that takes the items of several callers in turn."""

from __future__ import annotations

import heapq
import itertools
import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue for threads. A caller with many items delays the first item of another caller by one item at most.

    Start-time fair queueing: items are taken by number. The first item of a caller gets the number of the item that was
    taken last, and each further one the number after the caller's own last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: list[tuple[int, int, T]] = []  # a heap of number, order of arrival, item
        self._arrivals = itertools.count()
        self._taken = 0  # number of the item that was taken last
        self._next: dict[str, int] = {}  # number of the next item of each caller, if it is not `_taken`

    def put(self, caller: str, item: T) -> None:
        with self._lock:
            number = max(self._taken, self._next.get(caller, 0))
            self._next[caller] = number + 1
            heapq.heappush(self._items, (number, next(self._arrivals), item))

    def take(self) -> T | None:
        """Remove the next item; None if there is none."""
        with self._lock:
            if not self._items:
                return None
            self._taken, _, item = heapq.heappop(self._items)
            self._next = {caller: number for caller, number in self._next.items() if number > self._taken}
            return item
