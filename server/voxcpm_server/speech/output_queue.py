"""What the speaker of a Generate stream has made and its writer has not sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np

from voxcpm_grpc.peekable_queue import PeekableQueue
from voxcpm_server.speech.queues import Dropped, Output, Spoken, Stop


class OutputQueue:
    """A queue for one who puts and one who gets. Whoever puts awaits `room`, and so keeps its audio near `max_lead`.

    Both limits are in samples: audio pieces of a segment that wait together leave as one of up to `max_merged`, which
    means fewer messages for a client that falls behind.
    """

    def __init__(self, *, max_lead: float, max_merged: float) -> None:
        self._box: PeekableQueue[Output] = PeekableQueue()
        self._max_lead = max_lead
        self._max_merged = max_merged
        self._lead = 0
        self._led = asyncio.Event()  # set when `_lead` fell

    def __iter__(self) -> Iterator[Output]:
        return iter(self._box)

    def put(self, output: Output) -> None:
        if isinstance(output, Spoken):
            self._lead += len(output.samples)
        self._box.put(output)

    async def get(self) -> Output:
        output = await self._box.get()
        if isinstance(output, Spoken):
            output = self._merged(output)
            self._lead -= len(output.samples)
            self._led.set()
        return output

    async def room(self) -> None:
        """Returns when the client has taken enough of what waits for it."""
        while self._lead > self._max_lead:
            self._led.clear()
            await self._led.wait()

    def drop(self) -> None:
        """Forget all but the answers to interrupts."""
        self._box.keep(lambda output: isinstance(output, Dropped))
        self._lead = 0

    def stop(self) -> None:
        """Forget everything; what is taken next is Stop."""
        self._box.keep(lambda output: False)
        self._box.put(Stop())

    def _merged(self, first: Spoken) -> Spoken:
        pieces, total = [first.samples], len(first.samples)
        while isinstance(following := self._box.peek(), Spoken) and following.segment is first.segment:
            total += len(following.samples)
            if total > self._max_merged:
                break
            pieces.append(following.samples)
            self._box.pop()
        return Spoken(first.segment, np.concatenate(pieces)) if len(pieces) > 1 else first
