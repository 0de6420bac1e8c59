"""A thread that runs coroutines for code without asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

STOP_SECONDS = 5.0
T = TypeVar("T")


class LoopThread:
    """A thread with an event loop that runs coroutines for other threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="voxcpm event loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. Ctrl-C cancels the coroutine."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise
        finally:
            del future  # its exception refers to this frame

    def stop(self) -> None:
        """Cancel the running coroutines and end the thread. Any thread may call this, including this one."""
        asyncio.run_coroutine_threadsafe(self._finish(), self._loop)
        if threading.current_thread() is not self._thread:  # the garbage collector may run in this one
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _finish(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0)  # results of coroutines that ended just now are still on their way to other threads
        self._loop.stop()
