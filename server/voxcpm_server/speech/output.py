"""The items and the queues between the tasks of a Generate stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from voxcpm_grpc.aio.peekable_queue import PeekableQueue
from voxcpm_grpc.events import Admitted, AudioChunk, Finished, FinishReason
from voxcpm_server.text.segments.arriving_text import ArrivingText
from voxcpm_server.values.outputs import EndReason, Segment

SILENCE_MILLISECONDS = 500  # milliseconds of a pause in one message, at most


@dataclass(slots=True, eq=False)
class Audio:
    """Audio of a segment: one message, to which the queue may add more while it waits.

    parts: float32 [n] at the rate of the model
    samples: length of all parts
    chunks: what they count as in the window of the stream
    """

    segment: Segment
    parts: list[np.ndarray]
    samples: int
    chunks: int


@dataclass(frozen=True, slots=True, eq=False)
class Generated:
    """An event of the engine for a segment, before or after its audio."""

    segment: Segment
    event: Admitted | Finished


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


Work = Segment | ArrivingText | Silence | FlushDone | End
Output = Audio | Generated | Silent | Silence | FlushDone | Interrupted | WordsKnown | End | Stop


class OutputQueue:
    """The queue from the speaker to the writer, for one task at each end. The window of the stream limits its length.

    Audio of one segment that waits is merged up to `max_merged` samples, so that a slow client gets fewer messages. A
    long silence is divided, so that an interrupt can drop the rest of it.
    """

    def __init__(self, *, max_merged: float) -> None:
        self._queue: PeekableQueue[Output] = PeekableQueue()
        self._last: Audio | None = None  # the last item of the queue, if that is audio
        self._max_merged = max_merged

    def __iter__(self) -> Iterator[Output]:
        return iter(self._queue)

    def put(self, output: Output) -> None:
        self._last = output if isinstance(output, Audio) else None
        self._queue.put(output)

    def put_audio(self, segment: Segment, chunk: AudioChunk) -> None:
        """Put audio of a segment."""
        last, samples = self._last, chunk.samples
        if last is None or last.segment.key != segment.key or last.samples + len(samples) > self._max_merged:
            self.put(Audio(segment, [samples], len(samples), chunk.chunks))
            return
        last.parts.append(samples)
        last.samples += len(samples)
        last.chunks += chunk.chunks

    def wake(self) -> None:
        """Let the writer send words whose times are known, unless another message follows that has them."""
        if self._queue.peek() is None:
            self.put(WordsKnown())

    @property
    def answers_next(self) -> bool:
        """True if the next output is the reply to a flush or the end of the stream, each of which has a message."""
        return isinstance(self._queue.peek(), FlushDone | End)

    async def get(self) -> Output:
        """The next output."""
        output = await self._queue.get()
        if output is self._last:
            self._last = None
        if isinstance(output, Silence) and output.end - output.begin > SILENCE_MILLISECONDS:
            cut = output.begin + SILENCE_MILLISECONDS
            self._queue.put_back(replace(output, begin=cut))
            return replace(output, end=cut)
        return output

    def unsent(self) -> Unsent | None:
        """The audio that waits, of the first segment that has any."""
        waiting = [output for output in self._queue if isinstance(output, Audio | Generated)]
        if not waiting:
            return None
        segment = waiting[0].segment
        ours = [output for output in waiting if output.segment.key == segment.key]
        samples = sum(output.samples for output in ours if isinstance(output, Audio))
        events = [output.event for output in ours if isinstance(output, Generated)]
        ended = any(isinstance(event, Finished) and event.reason is FinishReason.STOP for event in events)
        return Unsent(segment, samples, ended)

    def drop(self) -> int:
        """Remove everything but the replies to interrupts. Returns the number of chunks removed."""
        chunks = sum(output.chunks for output in self._queue if isinstance(output, Audio))
        self._last = None
        self._queue.keep(lambda output: isinstance(output, Interrupted))
        return chunks

    def stop(self) -> None:
        """Remove everything, unless audio for one message is all that waits; `get` then returns Stop."""
        audio = self._last if self._queue.peek() is self._last else None
        self._queue.keep(lambda output: output is audio)
        self.put(Stop())
