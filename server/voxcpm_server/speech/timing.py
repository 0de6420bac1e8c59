"""The times of a stream: those of a segment, the gaps that a listener hears, and the timeout when nothing happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

from voxcpm_grpc.events import Admitted, Event, Finished
from voxcpm_server.values.outputs import Segment


@dataclass(slots=True)
class SegmentTiming:
    """Times are seconds of time.monotonic(); None if it has not happened.

    queue_seconds: the wait for a slot, as the engine measured it
    first_audio: when the first audio reached the front
    error: the error of the segment; a CancelledError if it was interrupted, or if its stream ended before it
    """

    segment: Segment
    submitted: float = field(default_factory=monotonic)
    queue_seconds: float | None = None
    cached_tokens: int = 0
    prompt_tokens: int = 0
    first_audio: float | None = None
    steps: int = 0
    engine_seconds: float | None = None
    engine: str = ""
    ended: float = 0.0
    error: BaseException | None = None

    def on_event(self, event: Event) -> None:
        """Take note of an event other than the chunks after the first one."""
        match event:
            case Admitted():
                self.queue_seconds = event.queue_seconds
                self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
            case Finished():
                self.steps, self.engine_seconds = event.steps, event.engine_seconds
            case _:
                self.first_audio = monotonic()


T = TypeVar("T")


class IdleTimeout:
    """Expires when all `tasks` of a stream have waited at the same time for `seconds`.

    Each task awaits through `wait` while it has nothing to do. One of them runs in a block of `limit`.
    """

    def __init__(self, tasks: int, seconds: float) -> None:
        self._timeout: asyncio.Timeout | None = None
        self._tasks = tasks
        self._seconds = seconds
        self._waiting = 0

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Raise TimeoutError in the block at the expiry."""
        try:
            async with asyncio.timeout(None) as self._timeout:
                yield
        finally:
            self._timeout = None  # it refers to the task, and so to the exception that ends it

    async def wait(self, awaitable: Awaitable[T]) -> T:
        """Await something while the task counts as idle; returns the result."""
        self._count(1)
        try:
            return await awaitable
        finally:
            self._count(-1)

    @contextmanager
    def waiting(self) -> Iterator[Callable[[], None]]:
        """Count the task as idle until the end of the block, or until a call of the function that it gets."""
        self._count(1)
        with ExitStack() as stack:
            stack.callback(self._count, -1)
            yield stack.close

    def _count(self, change: int) -> None:
        """Count one more waiting task, or one less."""
        waited, self._waiting = self._waiting, self._waiting + change
        if self._tasks in (waited, self._waiting) and self._timeout is not None and not self._timeout.expired():
            idle = self._waiting == self._tasks
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._seconds if idle else None)


class Playback:
    """Counts the gaps that a listener hears who plays audio as soon as it is sent, and knows when its audio ends.

    Only gaps inside a segment count. Between segments and pauses the text may not have been there yet.
    """

    def __init__(self) -> None:
        self.underruns = 0
        self.underrun_seconds = 0.0
        self.ends = 0.0  # all audio so far has been played at this time, as `now` gives it
        self._segment: tuple[int, int] | None = None

    def sent(self, seconds: float, segment: tuple[int, int] | None, now: float) -> None:
        """Audio of this length, of this turn and segment, is sent; None for a pause."""
        gap = now - self.ends
        if gap > 0 and segment is not None and segment == self._segment:
            self.underruns += 1
            self.underrun_seconds += gap
        self.ends = max(now, self.ends) + seconds
        self._segment = segment

    def cut(self, now: float) -> None:
        """The listener drops the audio that was not played."""
        self.ends = min(self.ends, now)
