"""The text of a call: a string, or pieces that arrive over time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from typing import Any

Text = str | Iterable[str] | AsyncIterable[str]
"""A string, or its pieces in order, which may be of any size and arrive at any time. Pieces are joined as they are."""

PIECE_CHARS = 16_384  # a longer string becomes several messages, each far below any message limit
WAITING_PIECES = 16


async def pieces(text: Text) -> AsyncGenerator[str]:
    """The pieces of `text`, without empty ones, each of at most PIECE_CHARS code points.

    A thread reads iterables other than lists and tuples, because they may block (a file, the output of a model).
    Raises TypeError for a piece that is not a string, and the exceptions of the iterable.
    """
    if isinstance(text, str):
        source = _each((text,))
    elif isinstance(text, AsyncIterable):
        source = aiter(text)
    else:
        source = _each(text) if isinstance(text, list | tuple) else _from_thread(text)
    async for piece in source:
        if not isinstance(piece, str):  # pyright: ignore[reportUnnecessaryIsInstance]: not every caller checks types
            raise TypeError(f"the pieces of a text must be str; one is {type(piece).__name__}")
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

    # A daemon thread, because nothing can wake a thread that reads a terminal, and the program must be able to exit.
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
    """Empty the queue. A thread that waits for room in it continues, sees `abandoned` and ends."""
    while not queue.empty():
        queue.get_nowait()
