"""The status with which a call ended, and its metadata.

If the server ends a call while the client is writing, grpc.aio gives the call the status INTERNAL, "Internal error from
Core", before or after the server's own status (github.com/grpc/grpc/issues/36066). That would hide the server's code,
the field at fault and the time to retry of a streaming call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any
from weakref import ref

import grpc

LOST_WRITE = "Internal error from Core"
POLLS, POLL_SECONDS = 100, 0.01


class CallStatus:
    """Keeps the first status of `call` that is not of a lost write. Create it right after the call."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._first: grpc.aio.AioRpcError | None = None
        # Calls of old grpcio keep callbacks, so a reference would be a cycle.
        call.add_done_callback(partial(_record, ref(self)))

    async def final(self, raised: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """The server's status, or that of grpc if the server sent none, for the error that the call has raised."""
        if raised.details() != LOST_WRITE:
            return raised
        if self._first is not None and self._first.details() != LOST_WRITE:
            return self._first
        for _ in range(POLLS):  # the server's status can still arrive
            await asyncio.sleep(POLL_SECONDS)
            if await self._call.details() != LOST_WRITE:
                return self._current()
        return raised

    def record(self) -> None:
        """Keep the status that the call has now. Old versions of grpcio call this for each status of a call."""
        if self._first is None or self._first.details() == LOST_WRITE:
            self._first = self._current()

    def _current(self) -> grpc.aio.AioRpcError:
        call = self._call
        return grpc.aio.AioRpcError(
            _result_now(call.code()),
            grpc.aio.Metadata(),
            _result_now(call.trailing_metadata()),
            _result_now(call.details()),
        )


def trailers_of(error: grpc.aio.AioRpcError) -> Mapping[str, str | bytes]:
    """The trailing metadata of a status by name; of several values of a name the first.

    The metadata of grpc.aio is read as pairs, because its `keys()` are pairs before grpcio 1.80 and names from then on:
    `dict(metadata)` raises KeyError with the older ones.
    """
    trailers: dict[str, str | bytes] = {}
    for name, value in error.trailing_metadata() or ():
        trailers.setdefault(name, value)
    return trailers


def _record(status: ref[CallStatus], _: Any) -> None:
    if (recording := status()) is not None:
        recording.record()


def _result_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that does not wait, or None. A task would deliver it too late."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value
    coroutine.close()
    return None
