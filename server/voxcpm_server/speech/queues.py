"""The items and the queues between the tasks of a Generate stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from voxcpm_grpc.peekable_queue import PeekableQueue
from voxcpm_grpc.request import AudioChunk, Event
from voxcpm_server.wire.outputs import EndReason, Segment


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """An event of the engine for a segment."""

    segment: Segment
    event: Event


@dataclass(frozen=True, slots=True)
class FlushDone:
    """The reply to a flush; all text before it has been generated."""

    tag: str


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The reply to an interrupt. `dropped`: the segments whose end was not sent."""

    tag: str
    dropped: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The end of the stream. `reason` is None if the stream ends for the reason of its last segment."""

    reason: EndReason | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the writer: the stream has failed or was cancelled."""


Work = Segment | FlushDone | End
Output = Generated | FlushDone | Interrupted | End | Stop


class OutputQueue:
    """The queue from the speaker to the writer, for one task at each end.

    A speaker that awaits `room` after each `put` keeps the queued audio near `max_lead`. `get` merges queued audio of
    one segment into chunks of up to `max_merged`, so that a slow client gets fewer messages.

    max_lead, max_merged: samples
    """

    def __init__(self, *, max_lead: float, max_merged: float) -> None:
        self._queue: PeekableQueue[Output] = PeekableQueue()
        self._max_lead = max_lead
        self._max_merged = max_merged
        self._lead = 0  # samples in the queue
        self._lead_fell = asyncio.Event()

    def __iter__(self) -> Iterator[Output]:
        return iter(self._queue)

    def put(self, output: Output) -> None:
        if isinstance(output, Generated) and isinstance(output.event, AudioChunk):
            self._lead += len(output.event.samples)
        self._queue.put(output)

    async def get(self) -> Output:
        output = await self._queue.get()
        if isinstance(output, Generated) and isinstance(output.event, AudioChunk):
            chunk = self._merged(output.segment, output.event)
            self._lead -= len(chunk.samples)
            self._lead_fell.set()
            return output if chunk is output.event else Generated(output.segment, chunk)
        return output

    async def room(self) -> None:
        """Wait until at most `max_lead` samples are queued."""
        while self._lead > self._max_lead:
            self._lead_fell.clear()
            await self._lead_fell.wait()

    def drop(self) -> None:
        """Remove everything but the replies to interrupts."""
        self._queue.keep(lambda output: isinstance(output, Interrupted))
        self._lead = 0

    def stop(self) -> None:
        """Remove everything; the next `get` returns Stop."""
        self._queue.keep(lambda output: False)
        self._queue.put(Stop())

    def _merged(self, segment: Segment, first: AudioChunk) -> AudioChunk:
        """The chunk with the queued chunks of its segment that follow it."""
        parts, total = [first.samples], len(first.samples)
        while isinstance(head := self._queue.peek(), Generated) and head.segment is segment:
            if not isinstance(head.event, AudioChunk):
                break
            total += len(head.event.samples)
            if total > self._max_merged:
                break
            parts.append(head.event.samples)
            self._queue.pop()
        return AudioChunk(index=first.index, samples=np.concatenate(parts)) if len(parts) > 1 else first
