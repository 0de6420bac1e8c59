"""When a stream has nothing to do and nobody says anything."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class IdleTimeout:
    """Ends the patience of one of a stream's `tasks` once all of them have waited, at the same time, for `seconds`.

    That task does its work inside `async with idleness.patience`, which then raises TimeoutError.
    """

    def __init__(self, tasks: int, seconds: float) -> None:
        self._tasks = tasks
        self._seconds = seconds
        self._waiting = 0
        self.patience = asyncio.timeout(None)

    async def waited(self, coming: Awaitable[T]) -> T:
        """What a task waits for, having nothing else to do."""
        self._waiting += 1
        if self._waiting == self._tasks:
            self.patience.reschedule(asyncio.get_running_loop().time() + self._seconds)
        try:
            return await coming
        finally:
            if self._waiting == self._tasks and not self.patience.expired():
                self.patience.reschedule(None)
            self._waiting -= 1
