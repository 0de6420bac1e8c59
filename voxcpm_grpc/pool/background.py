"""Work that goes on beside everything else, and must not end unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0


def kept_up(
    work: Callable[[], Coroutine[Any, Any, None]], name: str, *, again_seconds: float = AGAIN_SECONDS
) -> asyncio.Task[None]:
    """A task that does `work` until that returns or the task is cancelled.

    When it raises, the log says so with its `name` and the traceback, and it is begun anew after a pause.
    """

    async def keep_up() -> None:
        while True:
            try:
                return await work()
            except Exception:
                logger.exception("%s failed; it begins again in %g s", name, again_seconds)
            await asyncio.sleep(again_seconds)

    return asyncio.create_task(keep_up(), name=name)


async def ended(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel these tasks and wait for their end, whatever it is."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    if begun:
        await asyncio.wait(begun)


async def all_ended(closings: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all at once. What one of them raises goes to the log, and keeps no other one from its end."""
    for outcome in await asyncio.gather(*closings, return_exceptions=True):
        if isinstance(outcome, Exception):
            logger.error("something could not be closed", exc_info=outcome)
