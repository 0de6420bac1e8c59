"""Text as callers have it: a string, or pieces that are still being made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from typing import Any

Text = str | Iterable[str] | AsyncIterable[str]

PIECE_CHARS = 16_384  # a longer string becomes several messages, each far below any message limit
WAITING_PIECES = 16


async def pieces(text: Text) -> AsyncGenerator[str]:
    """`text` piece by piece, without empty ones.

    An iterable other than a list or tuple may block (a file, a model's output), so a thread of its own reads it.
    """
    if isinstance(text, str):
        source = _each((text,))
    elif isinstance(text, AsyncIterable):
        source = aiter(text)
    else:
        source = _each(text) if isinstance(text, list | tuple) else _from_thread(text)
    async for piece in source:
        if not isinstance(piece, str):
            raise TypeError(f"text pieces must be str, this one is {type(piece).__name__}")
        for start in range(0, len(piece), PIECE_CHARS):
            yield piece[start : start + PIECE_CHARS]


async def _each(items: Iterable[str]) -> AsyncIterator[str]:
    for item in items:
        yield item


async def _from_thread(items: Iterable[str]) -> AsyncIterator[str]:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[str | None, BaseException | None]] = asyncio.Queue(WAITING_PIECES)
    abandoned = threading.Event()

    def put(item: str | None, error: BaseException | None = None) -> None:
        asyncio.run_coroutine_threadsafe(queue.put((item, error)), loop).result()

    def read() -> None:
        try:
            for item in items:
                if abandoned.is_set():
                    return
                put(item)
            put(None)
        except BaseException as error:
            if not abandoned.is_set():
                put(None, error)

    # A daemon: nothing can wake a thread that waits for a terminal, and the program must be able to end meanwhile.
    threading.Thread(target=read, name="voxcpm-text", daemon=True).start()
    try:
        while True:
            item, error = await queue.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        abandoned.set()
        _drain(queue)


def _drain(queue: asyncio.Queue[Any]) -> None:
    """Make room, so that a reader that waits for it wakes up, sees that it is abandoned and ends."""
    while not queue.empty():
        queue.get_nowait()
