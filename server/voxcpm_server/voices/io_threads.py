"""The threads of the front: what blocks goes here, never to the default executor, which libraries fill up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class IoThreads:
    """A few threads for files and digests."""

    def __init__(self, count: int = 4, name: str = "voxcpm-io") -> None:
        self._executor = ThreadPoolExecutor(count, thread_name_prefix=name)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of the call. Its thread finishes it even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*args, **kwargs))

    def close(self, *, wait: bool = True) -> None:
        """Returns when all that was begun is done, or at once; what has not begun then never does."""
        self._executor.shutdown(wait=wait, cancel_futures=not wait)
