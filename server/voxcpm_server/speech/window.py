"""The limit on the audio that a stream makes before its client takes it."""

from __future__ import annotations

import asyncio

from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.request import Event

Call = EngineCall[Event]


class Lead:
    """Distributes the credit of a stream over its calls, so that at most `chunks` chunks exist that were not sent.

    A chunk uses up credit from the moment an engine is allowed to make it until the client's connection has taken it.
    Credit that comes back goes to the oldest call, or waits for the next one. A stream with two calls at a time
    (`ahead`) starts each with half of the credit.

    A call whose audio is held back as a whole may need more credit than there is. `lend` gives it some, which the next
    credit that comes back repays.
    """

    def __init__(self, chunks: int, *, ahead: bool) -> None:
        self._chunks = self._free = chunks
        self._share = max(1, chunks // 2) if ahead else chunks
        self._unused: dict[Call, int] = {}  # credit of each open call for chunks that are not made, the oldest first
        self._lent = 0
        self._returned = asyncio.Event()

    @property
    def free(self) -> int:
        """Chunks that no call may make yet."""
        return self._free

    @property
    def unsent(self) -> int:
        """Chunks that were made and not sent."""
        return self._chunks + self._lent - self._free - sum(self._unused.values())

    async def wait(self) -> None:
        """Wait until a call can start, and what was lent is repaid."""
        while not self._free or self._lent:
            self._returned.clear()
            await self._returned.wait()

    @property
    def share(self) -> int:
        """The credit for a call that starts now."""
        return min(self._share, self._free)

    def open(self, call: Call) -> None:
        """Count the credit with which a call has started."""
        self._unused[call] = call.credit
        self._free -= call.credit

    def on_chunk(self, call: Call) -> None:
        """Count a chunk that a call has made."""
        self._unused[call] -= 1

    def lend(self, call: Call) -> None:
        """Let a call make another chunk, although none was sent."""
        self._lent += 1
        self._unused[call] += 1
        call.grant(1)

    def close(self, call: Call) -> None:
        """Take back the credit that a call has not used."""
        self.release(self._unused.pop(call))

    def release(self, chunks: int) -> None:
        """Take back the credit of chunks that were sent or dropped."""
        repaid = min(chunks, self._lent)
        self._lent -= repaid
        chunks -= repaid
        if repaid and not self._lent:
            self._returned.set()
        if not chunks:
            return
        if oldest := next(iter(self._unused), None):
            self._unused[oldest] += chunks
            oldest.grant(chunks)
        else:
            self._free += chunks
            self._returned.set()
