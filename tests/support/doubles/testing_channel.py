"""A channel of `grpc_testing` for code that uses grpc.aio: no socket, and the test plays the server message by message.

`grpc_testing` has blocking channels only. `AsyncTestingChannel` gives one of them the part of grpc.aio's interface that
`voxcpm_client` uses; threads wait where the blocking channel blocks. Flow control, serialization and deadlines belong
to a real channel: none of them exists here.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any

import grpc
import grpc_testing


class AsyncTestingChannel:
    """Shows `channel`, the test's side, as a channel of grpc.aio. `timeouts` has the timeout of every call so far."""

    def __init__(self, channel: grpc_testing.Channel) -> None:
        self.timeouts: list[float | None] = []
        self._channel = channel
        self._calls: list[_Call] = []

    def unary_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Awaitable[Any]]:
        start = self._channel.unary_unary(method).future
        return lambda request, timeout=None, metadata=None: self._add(
            _UnaryCall(start(request, timeout, metadata)), timeout
        )

    def stream_unary(self, method: str, *_: Any, **__: Any) -> Callable[..., Awaitable[Any]]:
        start = self._channel.stream_unary(method).future
        return lambda requests, timeout=None, metadata=None: self._add(
            _UnaryCall(start(_blocking(requests), timeout, metadata)), timeout
        )

    def stream_stream(self, method: str, *_: Any, **__: Any) -> Callable[..., AsyncIterable[Any]]:
        start = self._channel.stream_stream(method)
        return lambda requests, timeout=None, metadata=None: self._add(
            _StreamCall(start(_blocking(requests), timeout, metadata)), timeout
        )

    async def close(self) -> None:
        for call in self._calls:
            call.cancel()

    def _add(self, call: Any, timeout: float | None) -> Any:
        self._calls.append(call)
        self.timeouts.append(timeout)
        return call


class _Call:
    """The client's side of a call, as grpc.aio has it."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._callbacks: list[Callable[[Any], object]] = []

    def cancel(self) -> None:
        self._call.cancel()

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._callbacks.append(callback)

    async def code(self) -> grpc.StatusCode:
        return self._call.code()

    async def details(self) -> str:
        return self._call.details()

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*self._call.trailing_metadata())

    async def _wait(self, blocking: Callable[[], Any]) -> Any:
        try:
            return await asyncio.to_thread(blocking)
        except grpc.RpcError:
            for callback in self._callbacks:
                callback(self)
            code, details, trailers = await self.code(), await self.details(), await self.trailing_metadata()
            if code is grpc.StatusCode.CANCELLED and details == "Locally cancelled!":
                raise asyncio.CancelledError from None
            raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailers, details) from None


class _UnaryCall(_Call):
    def __await__(self) -> Generator[Any, None, Any]:
        return self._wait(self._call.result).__await__()


class _StreamCall(_Call):
    async def __aiter__(self) -> AsyncIterator[Any]:
        ended = object()
        while (response := await self._wait(lambda: next(self._call, ended))) is not ended:
            yield response


def _blocking(messages: AsyncIterable[Any]) -> Iterator[Any]:
    """An iterator for another thread over messages of the running event loop."""
    received, ended = queue.SimpleQueue[Any](), object()

    async def forward() -> None:
        try:
            async for message in messages:
                received.put(message)
        finally:
            received.put(ended)

    forwarding = asyncio.create_task(forward())
    _FORWARDING.add(forwarding)
    forwarding.add_done_callback(_FORWARDING.discard)
    return iter(received.get, ended)


_FORWARDING: set[asyncio.Task[None]] = set()
"""The event loop itself has weak references only."""
