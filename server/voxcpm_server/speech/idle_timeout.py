"""The timeout of a stream whose tasks all wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class IdleTimeout:
    """Expires when all `tasks` of a stream have waited at the same time for `seconds`.

    Each task awaits through `wait` while it has nothing to do. One task runs inside `async with idle.timeout`, which
    raises TimeoutError at the expiry.
    """

    def __init__(self, tasks: int, seconds: float) -> None:
        self.timeout = asyncio.timeout(None)
        self._tasks = tasks
        self._seconds = seconds
        self._waiting = 0

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Await something while the task counts as idle; returns the result."""
        self._waiting += 1
        if self._waiting == self._tasks:
            self.timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)
        try:
            return await awaitable
        finally:
            if self._waiting == self._tasks and not self.timeout.expired():
                self.timeout.reschedule(None)
            self._waiting -= 1
