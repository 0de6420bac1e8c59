"""A limit of the time that a measurement takes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. Raises SystemExit if that takes more than `seconds`, and prints where each task waits.

    The tasks are printed before `work` is cancelled, in case it does not end then, either.
    """
    timer = asyncio.get_running_loop().call_later(seconds, _print_tasks)
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await work
    except TimeoutError:
        if limit.expired():
            raise SystemExit(f"the measurement took more than {seconds:g} s; its tasks are above") from None
        raise
    finally:
        timer.cancel()


def _print_tasks() -> None:
    for task in asyncio.all_tasks():
        print(f"{task.get_name()} waits:", *_places(task.get_coro()), sep="\n  ", file=sys.stderr)
    sys.stderr.flush()


def _places(waiting: Any) -> Iterator[str]:
    """The lines at which a coroutine waits, from the outermost to the innermost, and what that one awaits."""
    while waiting is not None:
        kind = next((kind for kind in ("cr", "ag", "gi") if hasattr(waiting, f"{kind}_frame")), None)
        if kind is None:
            yield repr(waiting)
            return
        if (frame := getattr(waiting, f"{kind}_frame")) is not None:
            yield f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"
        waiting = getattr(waiting, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
