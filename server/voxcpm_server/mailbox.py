"""A queue between two tasks of one event loop that can be looked into and emptied."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """One task gets, any may put. Unbounded: who puts keeps the bound."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._filled = asyncio.Event()

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def put(self, item: T) -> None:
        self._items.append(item)
        self._filled.set()

    async def get(self) -> T:
        while not self._items:
            self._filled.clear()
            await self._filled.wait()
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
