"""The items and the queues between the tasks of a Generate stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from voxcpm_grpc.peekable_queue import PeekableQueue
from voxcpm_grpc.request import AudioChunk, Event, Finished, FinishReason
from voxcpm_server.wire.outputs import EndReason, Segment

SILENCE_MILLISECONDS = 500  # longest part of a pause in one message
GATHERING_SECONDS = 0.25  # longest wait of audio for more of it


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
class Silence:
    """A pause of the caller, or the rest of one.

    turn: number of its turn
    begin, end: the times in the pause from which and to which it is not sent yet, in milliseconds
    """

    turn: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Silent:
    """A segment that has nothing to say."""

    segment: Segment


@dataclass(frozen=True, slots=True)
class Unsent:
    """Audio of a segment that was made and not sent.

    samples: its length, at the rate of the model
    finished: True if the segment has no more audio
    """

    segment: Segment
    samples: int
    finished: bool


@dataclass(frozen=True, slots=True)
class Interrupted:
    """The reply to an interrupt.

    played: position in the stream up to which the listener has heard it; None if the caller does not say
    dropped: the segments whose end was not sent
    dropped_flushes: tags of the flushes that get no reply
    unsent: the first audio that was dropped; None if there was none
    """

    tag: str
    played: int | None
    dropped: tuple[Segment, ...]
    dropped_flushes: tuple[str, ...]
    unsent: Unsent | None = None


@dataclass(frozen=True, slots=True)
class WordsKnown:
    """The times of words have become known."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of the stream. `reason` is None if the stream ends for the reason of its last segment."""

    reason: EndReason | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the writer: the stream has failed or was cancelled."""


Work = Segment | Silence | FlushDone | End
Output = Generated | Silent | Silence | FlushDone | Interrupted | WordsKnown | End | Stop


class OutputQueue:
    """The queue from the speaker to the writer, for one task at each end. The window of the stream limits its length.

    `get` merges queued audio of one segment into chunks of up to `max_merged` samples, so that a slow client gets fewer
    messages. A long silence is divided, so that an interrupt can drop the rest of it.

    Audio that the listener does not need yet waits for more of it, up to `max_gathered` samples, because a message
    takes most of the server's time for a chunk.
    """

    def __init__(self, *, max_merged: float, max_gathered: float) -> None:
        self._queue: PeekableQueue[Output] = PeekableQueue()
        self._max_merged = max_merged
        self._max_gathered = min(max_gathered, max_merged)
        self._gathered: asyncio.Future[None] | None = None  # the writer waits for more audio

    def __iter__(self) -> Iterator[Output]:
        return iter(self._queue)

    def put(self, output: Output) -> None:
        self._queue.put(output)
        if self._gathered is not None and not self._gathered.done() and not self._lacks_audio():
            self._gathered.set_result(None)

    def wake(self) -> None:
        """Let the writer send words whose times are known, unless another message follows that has them."""
        if self._queue.peek() is None and self._gathered is None:
            self.put(WordsKnown())

    async def get(self, *, needed: float) -> Output:
        """The next output. Audio may wait until the time `needed` of the event loop."""
        await self._queue.filled()
        if self._lacks_audio():
            await self._gather(needed)
        output = await self._queue.get()
        if isinstance(output, Generated) and isinstance(output.event, AudioChunk):
            return self._merged(output, output.event)
        if isinstance(output, Silence) and output.end - output.begin > SILENCE_MILLISECONDS:
            cut = output.begin + SILENCE_MILLISECONDS
            self._queue.put_back(replace(output, begin=cut))
            return replace(output, end=cut)
        return output

    def _lacks_audio(self) -> bool:
        """True if the queue holds nothing but audio, and another chunk fits into the message."""
        samples = 0
        for output in self._queue:
            if not isinstance(output, Generated) or not isinstance(output.event, AudioChunk):
                return False
            chunk = len(output.event.samples)
            samples += chunk
            if samples + chunk > self._max_gathered:
                return False
        return True

    async def _gather(self, needed: float) -> None:
        """Wait until the queue lacks no audio, or until the time `needed`, at most for GATHERING_SECONDS."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        if needed <= now:
            return
        gathered = self._gathered = loop.create_future()
        due = min(needed, now + GATHERING_SECONDS)
        timer = loop.call_at(due, lambda: gathered.done() or gathered.set_result(None))
        try:
            await gathered
        finally:
            timer.cancel()
            self._gathered = None

    def unsent(self) -> Unsent | None:
        """The audio that waits, of the first segment that has any."""
        waiting = [output for output in self._queue if isinstance(output, Generated)]
        if not waiting:
            return None
        segment = waiting[0].segment
        events = [output.event for output in waiting if output.segment is segment]
        samples = sum(len(event.samples) for event in events if isinstance(event, AudioChunk))
        ended = any(isinstance(event, Finished) and event.reason is FinishReason.STOP for event in events)
        return Unsent(segment, samples, ended)

    def drop(self) -> int:
        """Remove everything but the replies to interrupts. Returns the number of chunks removed."""
        chunks = sum(_is_audio(output) for output in self._queue)
        self._queue.keep(lambda output: isinstance(output, Interrupted))
        return chunks

    def stop(self) -> None:
        """Remove everything but audio that waits for more of it; `get` then returns Stop."""
        if self._gathered is None:
            self._queue.keep(lambda output: False)
        self.put(Stop())

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
