"""The limit on the audio that a stream makes before its client takes it."""

from __future__ import annotations

import asyncio

from voxcpm_grpc.events import Event
from voxcpm_grpc.pool.engine_call import EngineCall

Call = EngineCall[Event]


class Window:
    """Sets the limits of the calls of a stream, so that at most `size` chunks exist that were not sent or dropped.

    Calls end in the order in which they start. The oldest one may make everything that the window has room for, but a
    stream with two calls at a time (`ahead`) keeps half of the window for the second one.

    A call whose audio is held back as a whole may make more than there is room for. No other call then starts before
    enough of it was sent.
    """

    def __init__(self, size: int, *, ahead: bool) -> None:
        self.size = size
        self._reserve = size // 2 if ahead else 0
        self._made = self._sent = 0  # chunks of the stream
        self._ended = 0  # chunks of calls that have ended
        self._calls: list[Call] = []  # the oldest open call comes first
        self._moved = asyncio.Event()

    @property
    def unsent(self) -> int:
        """Chunks that were made and not sent."""
        return self._made - self._sent

    @property
    def next_limit(self) -> int:
        """The limit of a call that starts now. None may start with a limit below 1."""
        reserve = 0 if self._calls else self._reserve
        return self._room - reserve - sum(call.limit for call in self._calls)

    async def wait(self) -> None:
        """Wait until a call may start."""
        while self.next_limit < 1:
            self._moved.clear()
            await self._moved.wait()

    def open(self, call: Call) -> None:
        """Add a call, which has started with `next_limit`."""
        self._calls.append(call)

    def on_chunks(self, count: int) -> None:
        """Count chunks that the oldest call has made."""
        self._made += count

    def close(self, call: Call) -> None:
        """Remove a call, and give the others what it did not use."""
        self._calls.remove(call)
        self._ended = self._made
        self._raise_limits()

    def cancel(self) -> None:
        """Cancel the open calls, from which no more audio arrives."""
        for call in self._calls:
            call.cancel()

    def on_sent(self, chunks: int) -> None:
        """Count chunks that were sent or dropped."""
        self._sent += chunks
        self._moved.set()
        self._raise_limits()

    @property
    def _room(self) -> int:
        """Chunks that the open calls may make in all."""
        return self.size + self._sent - self._ended

    def _raise_limits(self) -> None:
        room, reserve = self._room, self._reserve
        for call in self._calls:
            call.allow(room - reserve)
            room, reserve = room - call.limit, 0
