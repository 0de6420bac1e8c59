"""One RPC in progress: reading that survives being cancelled, and who may come in."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc

from voxcpm_grpc.errors import Exhausted, InvalidRequest, Unavailable

STREAMS_RETRY_SECONDS = 1.0
DRAIN_RETRY_SECONDS = 2.0
LINGER_SECONDS = 0.25


@dataclass(slots=True)
class Call:
    """One RPC: what its status and its log line say. The caller's config may rename it."""

    method: str
    context: grpc.aio.ServicerContext
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    audio_seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started


class Malformed:
    """In place of a message whose bytes are none."""

    def error(self) -> InvalidRequest:
        return InvalidRequest("a message is no valid protobuf message of its type")


class Requests:
    """The messages of a caller. A read that began goes on when its reader is cancelled, for the next one."""

    def __init__(self, messages: AsyncIterator[Any]) -> None:
        self._messages = messages
        self._reading: asyncio.Future[Any] | None = None
        self._ended = False

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> Any:
        if self._ended:
            raise StopAsyncIteration
        if self._reading is None:
            self._reading = asyncio.ensure_future(anext(self._messages, None))
            self._reading.add_done_callback(_note)
        message = await asyncio.shield(self._reading)
        self._reading = None
        if message is None:
            self._ended = True
            raise StopAsyncIteration
        if isinstance(message, Malformed):
            raise message.error()
        return message

    async def linger(self) -> None:
        """Read what the caller is still sending, for a moment.

        A client that is writing while the status arrives may report its broken write instead of the status.
        """
        with suppress(Exception):
            async with asyncio.timeout(LINGER_SECONDS):
                async for _ in self:
                    pass


def _note(done: asyncio.Future[Any]) -> None:
    """Errors of a read reach whoever waits for it; if nobody does, the RPC is over and they say nothing."""
    if not done.cancelled():
        done.exception()


class AdmissionGate:
    """Lets RPCs in: `max_streams` streams at once, and nobody any more once the server drains."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._streams = 0
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    @property
    def streams(self) -> int:
        return self._streams

    @contextmanager
    def enter(self, *, stream: bool) -> Iterator[None]:
        """Held for the length of an RPC. Raises Unavailable and Exhausted."""
        if self._draining:
            raise Unavailable("the server is shutting down; retry elsewhere", retry_after=DRAIN_RETRY_SECONDS)
        if stream and self._streams >= self._max_streams:
            raise Exhausted(
                f"{self._streams} streams are open and the limit is {self._max_streams}; retry later",
                retry_after=STREAMS_RETRY_SECONDS,
            )
        self._streams += stream
        self._open += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._streams -= stream
            self._open -= 1
            if not self._open:
                self._idle.set()

    def close(self) -> None:
        """Refuse every new RPC from now on."""
        self._draining = True

    async def idle(self) -> None:
        """Returns when no RPC is open."""
        await self._idle.wait()
