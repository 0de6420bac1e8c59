"""How a call really ended.

When a write is under way while the server ends the call, grpc.aio gives the call the status INTERNAL, "Internal error
from Core", before or after the server's own (github.com/grpc/grpc/issues/36066). What the server said would be lost:
the field at fault, the time to come back, that a retry is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc

LOST_WRITE = "Internal error from Core"
POLLS, POLL_SECONDS = 100, 0.01


class Outcome:
    """Remembers the first status of `call`, a streaming call that has just been made."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._first: grpc.aio.AioRpcError | None = None
        call.add_done_callback(self._note)

    async def error(self, seen: grpc.aio.AioRpcError) -> grpc.aio.AioRpcError:
        """The server's status, or grpc's if there is no other, given the one that the call has raised."""
        if seen.details() != LOST_WRITE:
            return seen
        if self._first is not None and self._first.details() != LOST_WRITE:
            return self._first
        for _ in range(POLLS):  # the server's is on its way
            await asyncio.sleep(POLL_SECONDS)
            if await self._call.details() != LOST_WRITE:
                return self._status()
        return seen

    def _note(self, _: Any) -> None:
        self._first = self._status()

    def _status(self) -> grpc.aio.AioRpcError:
        call = self._call
        return grpc.aio.AioRpcError(
            _now(call.code()), grpc.aio.Metadata(), _now(call.trailing_metadata()), _now(call.details())
        )


def _now(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that has nothing to wait for; awaiting it in a task would come too late."""
    try:
        coroutine.send(None)
    except StopIteration as finished:
        return finished.value
    coroutine.close()
    return None
