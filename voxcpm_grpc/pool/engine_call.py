"""What a caller of the pool holds, and the letter box behind it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

from voxcpm_grpc.errors import VoxCPMError
from voxcpm_grpc.ipc.messages import Command, Credit
from voxcpm_grpc.peekable_queue import PeekableQueue
from voxcpm_grpc.request import Admitted, AudioChunk, CodecChunk, Event, Finished

T = TypeVar("T")

LOSSES = 1  # of its engine that a job survives; more, and a job that kills engines would go through the whole pool
LEAST_SHARE = 1 / 8  # of its estimated work that a job has left for as long as it lives


class Home(Protocol):
    """The place whose engine works on a job."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    def post(self, id: str, command: Command) -> None: ...
    def cancel(self, id: str) -> None: ...


@dataclass(slots=True, eq=False)
class EngineCall:
    """The letter box of a request or codec job. Bounded by its credit, or by the length of what is coded.

    `command` makes the command that sets an engine to it, under an id of the engine's; `work` is how many steps that
    is likely to take. Of a `whole` job nothing is delivered before all of it is there.
    """

    name: str
    command: Callable[[str], Command]
    work: float = 1.0
    credit: int = 0  # chunks that may be made ahead of the reader
    prefix: int | None = None
    whole: bool = False
    losses: int = LOSSES
    items: PeekableQueue[Any] = field(default_factory=PeekableQueue)
    began: bool = False
    spoke: bool = False
    home: Home | None = None
    id: str = ""
    _made: int = 0
    _held: list[Any] = field(default_factory=list)

    @property
    def is_stream(self) -> bool:
        """Whether it takes a slot of its engine."""
        return self.credit > 0

    @property
    def left(self) -> float:
        """Steps of its work that are still to do."""
        return max(self.work - self._made, self.work * LEAST_SHARE)

    def enter(self, home: Home, id: str) -> Command:
        """Begin at an engine, the first one or another; returns what to tell it."""
        self.home, self.id = home, id
        self._made = 0
        self._held.clear()
        return self.command(id)

    def deliver(self, item: Event | CodecChunk) -> None:
        match item:
            case AudioChunk():
                self._made += 1
                self.spoke = True
                self.items.put(item)
            case Admitted():
                if not self.began:  # an engine before this one may have begun already
                    self.items.put(item)
                self.began = True
            case CodecChunk():
                self._made += 1
                self._held.append(item)
                if item.last or not self.whole:
                    for held in self._held:
                        self.items.put(held)
                    self._held.clear()
                    self.spoke = True
            case _:
                self.items.put(item)

    def fail(self, error: VoxCPMError) -> EngineCall:
        self.items.put(error)
        return self

    def cancel(self) -> None:
        if self.home:
            self.home.cancel(self.id)

    def cancel_from_anywhere(self) -> None:
        """For finalizers: they run in any thread, and after the loop's end too."""
        if self.home and not self.home.loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed just now
                self.home.loop.call_soon_threadsafe(self.cancel)

    def grant(self, chunks: int) -> None:
        if self.home:
            self.home.post(self.id, Credit(self.id, chunks))


class Stream(Generic[T]):
    """What an engine says about one request or job, in order. An asynchronous iterator for one reader.

    Dropping it, closing it and cancelling its reader all cancel what it stands for.
    """

    def __init__(self, job: EngineCall) -> None:
        self._job = job
        self._read = 0  # chunks not yet given back as credit
        self._over = False

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        if self._over:
            raise StopAsyncIteration
        try:
            item: Any = await self._job.items.get()
        except BaseException:
            self._close()
            raise
        match item:
            case AudioChunk():
                self._give_credit()
            case None:
                raise StopAsyncIteration
            case VoxCPMError():
                self._over = True
                raise item
            case Finished() | CodecChunk(last=True):
                self._over = True
        return cast(T, item)

    async def aclose(self) -> None:
        self._close()

    def __del__(self) -> None:
        if not self._over:
            self._job.cancel_from_anywhere()

    def _close(self) -> None:
        if self._over:
            return
        self._over = True
        self._job.items.put(None)  # wakes a reader in another task
        self._job.cancel()

    def _give_credit(self) -> None:
        self._read += 1
        if self._read * 2 >= self._job.credit:  # in halves: few messages, and the engine never runs dry
            self._job.grant(self._read)
            self._read = 0
