"""Background tasks that restart after an error, and helpers that end tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


def keep_running(
    work: Callable[[], Coroutine[Any, Any, None]], name: str, *, retry_seconds: float = RETRY_SECONDS
) -> asyncio.Task[None]:
    """Run `work` in a task until it returns or the task is cancelled.

    If `work` raises, its `name` and the traceback are logged, and it starts again after `retry_seconds`, unless the
    task was cancelled.
    """

    async def run() -> None:
        while True:
            try:
                return await work()
            except Exception:
                if task.cancelling():  # nothing would end what started again
                    logger.exception("%s failed when it was cancelled", name)
                    return None
                logger.exception("%s failed; it starts again in %g s", name, retry_seconds)
            await asyncio.sleep(retry_seconds)

    task = asyncio.create_task(run(), name=name)
    return task


async def cancel_and_wait(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they end. Their results and errors are ignored."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


async def close_all(closings: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await coroutines concurrently. An error in one is logged and does not stop the others."""
    for outcome in await asyncio.gather(*closings, return_exceptions=True):
        if isinstance(outcome, Exception):
            logger.error("closing failed", exc_info=outcome)
