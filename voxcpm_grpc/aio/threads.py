"""Threads for blocking work. The default executor is not used, because libraries may fill it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class IoThreads:
    """A pool of a few threads, for files and digests."""

    def __init__(self, count: int = 4, name: str = "voxcpm-io") -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `work` in a thread and return its result. The thread finishes even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*args, **kwargs))

    def close(self, *, wait: bool = True) -> None:
        """Stop the threads, after all submitted work; without `wait` at once, dropping work that has not started."""
        self._executor.shutdown(wait=wait, cancel_futures=not wait)
