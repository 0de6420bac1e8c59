"""The items and the queues between the tasks of a Generate stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from voxcpm_grpc.peekable_queue import PeekableQueue
from voxcpm_grpc.request import AudioChunk, Event
from voxcpm_server.wire.outputs import EndReason, Segment


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """An event of the engine for a segment. `chunks` is the number of chunks merged into an AudioChunk."""

    segment: Segment
    event: Event
    chunks: int = 1


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
    """The queue from the speaker to the writer, for one task at each end. The speaker's credit limits its length.

    `get` merges queued audio of one segment into chunks of up to `max_merged` samples, so that a slow client gets fewer
    messages.
    """

    def __init__(self, *, max_merged: float) -> None:
        self._queue: PeekableQueue[Output] = PeekableQueue()
        self._max_merged = max_merged

    def __iter__(self) -> Iterator[Output]:
        return iter(self._queue)

    def put(self, output: Output) -> None:
        self._queue.put(output)

    async def get(self) -> Output:
        output = await self._queue.get()
        if isinstance(output, Generated) and isinstance(output.event, AudioChunk):
            return self._merged(output, output.event)
        return output

    def drop(self) -> int:
        """Remove everything but the replies to interrupts. Returns the number of chunks removed."""
        chunks = sum(_is_audio(output) for output in self._queue)
        self._queue.keep(lambda output: isinstance(output, Interrupted))
        return chunks

    def stop(self) -> None:
        """Remove everything; the next `get` returns Stop."""
        self._queue.keep(lambda output: False)
        self._queue.put(Stop())

    def _merged(self, output: Generated, first: AudioChunk) -> Generated:
        """The chunk with the queued chunks of its segment that follow it."""
        parts, total = [first.samples], len(first.samples)
        while isinstance(head := self._queue.peek(), Generated) and head.segment is output.segment:
            if not isinstance(head.event, AudioChunk):
                break
            total += len(head.event.samples)
            if total > self._max_merged:
                break
            parts.append(head.event.samples)
            self._queue.pop()
        if len(parts) == 1:
            return output
        return Generated(output.segment, AudioChunk(index=first.index, samples=np.concatenate(parts)), len(parts))


def _is_audio(output: Output) -> bool:
    return isinstance(output, Generated) and isinstance(output.event, AudioChunk)
