"""The timeout of a stream whose tasks all wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")


class IdleTimeout:
    """Expires when all `tasks` of a stream have waited at the same time for `seconds`.

    Each task awaits through `wait` while it has nothing to do. One of them runs inside `async with idle`, which raises
    TimeoutError at the expiry.
    """

    def __init__(self, tasks: int, seconds: float) -> None:
        self._timeout: asyncio.Timeout | None = None
        self._tasks = tasks
        self._seconds = seconds
        self._waiting = 0

    async def __aenter__(self) -> None:
        self._timeout = asyncio.timeout(None)
        await self._timeout.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._timeout is not None
        timeout, self._timeout = self._timeout, None  # it refers to the task, and so to the exception that ends it
        await timeout.__aexit__(kind, error, traceback)

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Await something while the task counts as idle; returns the result."""
        self._waiting += 1
        if self._waiting == self._tasks and self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds)
        try:
            return await awaitable
        finally:
            if self._waiting == self._tasks and self._timeout is not None and not self._timeout.expired():
                self._timeout.reschedule(None)
            self._waiting -= 1
