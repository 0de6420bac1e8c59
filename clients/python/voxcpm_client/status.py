"""The status with which a streaming call ended.

If the server ends a call while the client is writing, grpc.aio gives the call the status INTERNAL, "Internal error from
Core", before or after the server's own status (github.com/grpc/grpc/issues/36066). That would hide the server's code,
the field at fault and the time to retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc

LOST_WRITE = "Internal error from Core"
POLLS, POLL_SECONDS = 100, 0.01


class CallStatus:
    """Keeps the first status of `call`. Create it right after the call."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._first: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._record)

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

    def _record(self, _: Any) -> None:
        self._first = self._current()

    def _current(self) -> grpc.aio.AioRpcError:
        call = self._call
        return grpc.aio.AioRpcError(
            _result_now(call.code()),
            grpc.aio.Metadata(),
            _result_now(call.trailing_metadata()),
            _result_now(call.details()),
        )


def _result_now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that does not wait, or None. A task would deliver it too late."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value
    coroutine.close()
    return None
