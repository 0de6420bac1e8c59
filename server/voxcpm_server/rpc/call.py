"""One RPC in progress, the messages of its caller, and the admission of RPCs."""

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
    """One RPC, as its status and its log line describe it. The caller's config may set `request_id`."""

    method: str
    context: grpc.aio.ServicerContext
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    audio_seconds: float = 0.0
    started: float = field(default_factory=time.monotonic)


class MalformedMessage:
    """Takes the place of a message whose bytes could not be parsed."""

    def error(self) -> InvalidRequest:
        return InvalidRequest("a message is not a valid protobuf message of its type; check the client's stubs")


class RequestStream:
    """Iterates over the messages of a caller. If a read is cancelled, the next read returns its message."""

    def __init__(self, messages: AsyncIterator[Any]) -> None:
        self._messages = messages
        self._reading: asyncio.Future[Any] | None = None
        self._ended = False

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> Any:
        if self._ended:
            raise StopAsyncIteration
        if self._reading is None:
            self._reading = asyncio.ensure_future(anext(self._messages, None))
            self._reading.add_done_callback(_retrieve_exception)
        message = await asyncio.shield(self._reading)
        self._reading = None
        if message is None:
            self._ended = True
            raise StopAsyncIteration
        if isinstance(message, MalformedMessage):
            raise message.error()
        return message

    async def linger(self) -> None:
        """Read and discard messages for a moment.

        A client that is writing when the status arrives may report a broken write instead of the status.
        """
        with suppress(Exception):
            async with asyncio.timeout(LINGER_SECONDS):
                async for _ in self:
                    pass


def _retrieve_exception(done: asyncio.Future[Any]) -> None:
    """Mark the exception of a read as retrieved: if no task awaits the read, the RPC is over."""
    if not done.cancelled():
        done.exception()


class AdmissionGate:
    """Admits RPCs: up to `max_streams` streams at once, and none after `close`."""

    def __init__(self, max_streams: int) -> None:
        self._max_streams = max_streams
        self._streams = 0
        self._open = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return self._streams

    @contextmanager
    def enter(self, *, stream: bool) -> Iterator[None]:
        """Admit an RPC that lasts as long as the block. Raises Unavailable and Exhausted."""
        if self._closed:
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
        self._closed = True

    async def idle(self) -> None:
        """Wait until no RPC is open."""
        await self._idle.wait()
