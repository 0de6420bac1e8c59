"""The text of a call: a string, or pieces that arrive over time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import Any

from voxcpm_client.errors import InvalidArgument
from voxcpm_client.values.arguments import check_piece

MAX_PAUSE_SECONDS = 60.0  # the server has the same limit


@dataclass(frozen=True, slots=True)
class Pause:
    """Silence of an exact length between two pieces of a text. Raises InvalidArgument for a length out of range."""

    seconds: float
    """The length in seconds, rounded to milliseconds: 0.001 to 60. Speed does not change it."""

    def __post_init__(self) -> None:
        seconds: object = self.seconds
        if not (isinstance(seconds, Real) and 0.001 <= float(seconds) <= MAX_PAUSE_SECONDS):
            raise InvalidArgument(
                f"a pause has {seconds!r} seconds; it must have 0.001 to {MAX_PAUSE_SECONDS:g}, use several for a "
                "longer silence",
                field="seconds",
            )


Text = str | Iterable[str | Pause] | AsyncIterable[str | Pause]
"""A string, or its pieces in order, which may be of any size and arrive at any time. Pieces are joined as they are. A
Pause between two pieces ends the sentence before it."""

PIECE_CHARS = 16_384  # a longer string becomes several messages, each far below any message limit
WAITING_PIECES = 16


async def pieces(text: Text) -> AsyncGenerator[str | Pause]:
    """The pieces of `text`, without empty ones, each of at most PIECE_CHARS code points.

    A thread reads iterables other than lists and tuples, because they may block (a file, the output of a model).
    Raises TypeError for a piece that is neither a string nor a Pause, and the exceptions of the iterable.
    """
    if isinstance(text, str):
        source = _each((text,))
    elif isinstance(text, AsyncIterable):
        source = aiter(text)
    else:
        source = _each(text) if isinstance(text, list | tuple) else _from_thread(text)
    number = 0
    async for piece in source:
        number += 1
        check_piece(piece, number, Pause)
        if isinstance(piece, Pause):
            yield piece
            continue
        for part in parts(piece):
            yield part


def parts(text: str) -> Iterator[str]:
    """A string in parts of at most PIECE_CHARS code points."""
    for start in range(0, len(text), PIECE_CHARS):
        yield text[start : start + PIECE_CHARS]


async def _each(items: Iterable[str | Pause]) -> AsyncIterator[str | Pause]:
    for item in items:
        yield item


async def _from_thread(items: Iterable[str | Pause]) -> AsyncIterator[str | Pause]:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[str | Pause, BaseException | None]] = asyncio.Queue(WAITING_PIECES)
    abandoned = threading.Event()

    def put(item: str | Pause, error: BaseException | None = None) -> None:
        waiting = queue.put((item, error))
        try:
            asyncio.run_coroutine_threadsafe(waiting, loop).result()
        finally:
            waiting.close()  # a closed event loop has not begun it, and Python would warn

    def read() -> None:
        try:
            for item in items:
                if abandoned.is_set():
                    return
                put(item)
            put("", _End())
        except BaseException as error:
            if not abandoned.is_set():
                put("", error)

    # The thread is a daemon, because nothing can wake a thread that reads a terminal, and the program must be able to
    # exit.
    threading.Thread(target=read, name="voxcpm-text", daemon=True).start()
    try:
        while True:
            item, error = await queue.get()
            if isinstance(error, _End):
                return
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # the error refers to this frame
            yield item
    finally:
        abandoned.set()
        _drain(queue)


class _End(Exception):
    """The end of an iterable, which may itself yield anything, None included."""


def _drain(queue: asyncio.Queue[Any]) -> None:
    """Empty the queue. A thread that waits for room in it continues, sees `abandoned` and ends."""
    while not queue.empty():
        queue.get_nowait()
