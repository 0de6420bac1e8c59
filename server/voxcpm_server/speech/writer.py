"""The messages of one reply stream: numbered, positioned and encoded."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np

from voxcpm_grpc.audio import AudioFormat, Encoded, OutputPipeline
from voxcpm_grpc.events import FinishReason
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech.heard import SpokenText
from voxcpm_server.speech.output import Interrupted, Silence
from voxcpm_server.speech.timing import Playback
from voxcpm_server.speech.words.word_times import WordTimes
from voxcpm_server.values.outputs import EndReason, RequestWarning, Segment, Summary
from voxcpm_server.values.voice import Voice
from voxcpm_server.wire import replies

with suppress(ImportError):  # only some streams need it, but loading it during one would block the others
    import soxr  # noqa: F401

T = TypeVar("T")
NOTHING = Encoded(b"", 0)
# The threads are their own, because other work of a front waits for those of the event loop.
ENCODING_THREADS = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="encode")


class ChunkWriter:
    """Sends the messages of one RPC in order. For one task, because gRPC does not allow two writes at once.

    Segment events have their exact position in the signal. Effects, resampler and encoder delay audio, so an event may
    wait for the message that contains its position. Filters and compression run in a thread.

    send: sends a message
    header: builds the header when the first message is sent, from `delay` and `queue` of `replies.header`
    native_rate: sample rate of the input
    format: encoding and sample rate of the output
    summary: receives the times of the first audio, and what is left out
    words: finds the times of words; None if nobody wants them
    """

    def __init__(
        self,
        send: Callable[[pb.AudioChunk], Awaitable[None]],
        header: Callable[..., pb.StreamHeader],
        native_rate: int,
        format: AudioFormat,
        summary: Summary,
        words: WordTimes | None = None,
    ) -> None:
        self._send_message = send
        self._header = header
        self._pipeline = OutputPipeline(native_rate, format)
        self._rate = format.sample_rate
        self.summary = summary
        self._sequence = 0
        self.offset = 0  # samples sent so far
        self.playback = Playback()
        self._bytes = 0
        self._events: deque[tuple[int, pb.SegmentEvent]] = deque()  # an event may be sent once `offset` is that far
        self._started = pb.SegmentEvent()  # it tells of the newest segment
        self._spoken = SpokenText(format.sample_rate, native_rate)
        self.words = words
        self._turn = self._segment = 0
        self._spoken_turn: int | None = None  # a segment of this turn has started, and of no newer one
        self._paused_turn: int | None = None  # this turn has a pause, and no newer one
        self._playing: tuple[int, int] | None = None  # the audio of this segment comes next; None stands for a pause
        self.first_turn = 0  # the turns of audio and segments are counted from it
        self._warned: set[RequestWarning] = set()
        self._warnings: list[RequestWarning] = []  # the next message takes them

    def warn(self, *warnings: RequestWarning) -> None:
        """Send warnings with the next message, those that were not sent before."""
        for warning in warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                self._warnings.append(warning)

    async def audio(self, samples: np.ndarray, turn: int = 0, segment: int = 0) -> None:
        """Send audio, float32 [n] at the native rate; nothing is sent while the pipeline holds all of it."""
        self._turn, self._segment = self._playing = self.first_turn + turn, segment
        before = self._pipeline.trimmed
        part = await self._run(lambda: self._pipeline.push(samples))
        if trimmed := self._pipeline.trimmed - before:
            self.summary.trimmed += trimmed
            self._started.trimmed_samples = trimmed
        if self.words is not None:
            self.words.push(samples, self._pipeline.end)
        if part.data:
            await self._send(part)

    async def segment_started(self, segment: Segment, max_silence: float) -> None:
        """The next audio belongs to this segment. Sends the header if nothing was sent yet.

        max_silence: seconds of silence at the start of a turn that may be left out
        """
        if not self._sequence:
            await self._send()
        turn = self.first_turn + segment.turn
        self._turn, self._segment = turn, segment.index
        if turn != self._spoken_turn:  # it begins after a flush or an interrupt
            self._spoken_turn = turn
            self._pipeline.begin_turn(
                segment.turn_config.effects, max_silence=0.0 if turn == self._paused_turn else max_silence
            )
        at = self._pipeline.end
        self._spoken.started(segment, at)
        event = replies.segment_event(pb.SEGMENT_EVENT_KIND_STARTED, segment, at, first_turn=self.first_turn)
        self._events.append((at + 1, event))  # the event goes with the segment's first sample
        self._started = event
        if self.words is not None:
            self.words.started(segment, turn, at)

    def segment_grew(self, segment: Segment) -> None:
        """The text of a segment that may have started is this."""
        self._spoken.grew(segment)
        if self.words is not None:
            self.words.grew(segment)

    async def segment_finished(
        self, segment: Segment, reason: FinishReason, *, message_follows: Callable[[], bool] = lambda: False
    ) -> None:
        """All audio of this segment was passed to `audio`. A segment that is silent as a whole is sent.

        message_follows: tells whether `flush` or `finish` is called next, whose message then has the event
        """
        if segment.arrives:  # its text may have grown while `segment_started` waited
            self.segment_grew(segment)
        part = await self._run(self._pipeline.end_silence)
        at = self._pipeline.end
        complete = reason is FinishReason.STOP
        whole = self._spoken.finished(at, complete=complete)
        if self.words is not None:
            self.words.finished(at - 1, whole, complete=complete)  # the resampler may round it down
        event = replies.segment_event(pb.SEGMENT_EVENT_KIND_FINISHED, segment, at, reason, first_turn=self.first_turn)
        self._events.append((at, event))
        waits = self.words is None and message_follows()  # `finish` waits for the times of words
        if part.data or (at <= self.offset and not waits):
            await self._send(part)

    async def segment_silent(self, segment: Segment) -> None:
        """This segment has no audio."""
        at = self._pipeline.end
        kind, reason = pb.SEGMENT_EVENT_KIND_FINISHED, EndReason.NOTHING_TO_SAY
        self._events.append((at, replies.segment_event(kind, segment, at, reason, first_turn=self.first_turn)))
        if at <= self.offset:
            await self._send()

    async def silence(self, silence: Silence) -> None:
        """Send silence at the rate of the output. The speech before it ends with its last sample."""
        turn = self._paused_turn = self.first_turn + silence.turn
        if turn != self._turn:
            self._turn, self._segment = turn, 0
        self._playing = None
        samples = self._samples_at(silence.end) - self._samples_at(silence.begin)
        part = await self._run(lambda: self._pipeline.pause(samples))
        self._end_signal(self._pipeline.position - samples)
        if part.data:
            await self._send(part)

    async def flush(self, tag: str | None) -> None:
        """Send all audio so far, and the reply to a flush unless the tag is None."""
        part = await self._run(self._pipeline.end_turn)
        self._end_signal(self.offset + part.samples)
        reply = {} if tag is None else {"flush_done": replies.flush_done(tag, self.offset + part.samples)}
        if part.data or reply or self._events:
            await self._send(part, all_events=True, **reply)

    async def interrupted(self, interrupted: Interrupted) -> None:
        """Drop audio that was not sent, and send the reply to an interrupt."""
        at, made = self.offset, self._pipeline.end
        await self._run(self._pipeline.discard)
        whole = self._spoken.cut(at, made, interrupted.unsent)
        known = () if self.words is None else self.words.known
        heard = None if interrupted.played is None else self._spoken.heard(interrupted.played, known)
        if self.words is not None:
            self.words.cut(at, whole)
        self._events.clear()
        for segment in interrupted.dropped:
            event = replies.segment_event(pb.SEGMENT_EVENT_KIND_DROPPED, segment, at, EndReason.INTERRUPTED)
            self._events.append((at, event))
        reply = replies.interrupted(interrupted.tag, at, heard, interrupted.dropped_flushes)
        await self._send(all_events=True, interrupted=reply)

    async def voice(self, voice: Voice, reused: bool, model: str) -> None:
        """Send the handle of a stored voice, for the model of this name."""
        await self._send(handle=replies.handle(voice, model=model, reused=reused))

    async def finish(self) -> None:
        """Send the last message, once the times of all words are known."""
        if self.words is not None:
            await self.words.settle()
        part = await self._run(self._pipeline.flush)
        self._end_signal(self.offset + part.samples)
        message = replies.summary(
            self.summary,
            samples=self.offset + part.samples,
            padding=part.padding,
            bytes=self._bytes + len(part.data),
            now=time.monotonic(),
            words=() if self.words is None else self.words.known,
        )
        await self._send(part, all_events=True, summary=message)

    async def send_words(self) -> None:
        """Send the words whose times are known, unless a message had them already."""
        if self.words is not None and self.words.waiting:
            await self._send()

    def close(self) -> None:
        """No message follows."""
        if self.words is not None:
            self.words.close()

    def _end_signal(self, end: int) -> None:
        """No position of the signal is beyond its end, which the resampler may round down by a sample."""
        self._spoken.limit(end)
        for _, event in self._events:
            event.at_samples = min(event.at_samples, end)

    def _samples_at(self, milliseconds: int) -> int:
        return (2 * milliseconds * self._rate + 1000) // 2000

    async def _run(self, step: Callable[[], T]) -> T:
        """Run a step of the pipeline."""
        if not self._pipeline.slow:
            return step()
        return await asyncio.get_running_loop().run_in_executor(ENCODING_THREADS, step)

    async def _send(self, part: Encoded = NOTHING, *, all_events: bool = False, **extras: Any) -> None:
        """Send a message with the events that it reaches, or with all events if the signal ends here."""
        samples = part.samples
        end = self.offset + samples
        if not self._sequence:
            extras["header"] = self._header(delay=self._pipeline.delay, queue=self.summary.queue or 0.0)
        if self.words is not None:
            self.warn(*self.words.doubts())
            extras["words"] = map(replies.word, self.words.take(end))
        if self._warnings:
            extras["warnings"] = [replies.warning(warning) for warning in self._warnings]
            self._warnings.clear()
        if self._events:
            extras["segment_events"] = due = []
            while self._events and (all_events or self._events[0][0] <= end):
                due.append(self._events.popleft()[1])
        message = replies.chunk(
            part.data,
            sequence=self._sequence,
            offset=self.offset,
            samples=samples,
            turn=self._turn,
            segment=self._segment,
            **extras,
        )
        if samples:
            self._note_times(end)
            self.playback.sent(samples / self._rate, self._playing, asyncio.get_running_loop().time())
        self._sequence += 1
        self.offset = end
        self._bytes += len(part.data)
        await self._send_message(message)

    def _note_times(self, end: int) -> None:
        """Note the times of the first audio and of the first audible sample, if the audio up to `end` is the first.

        A listener who plays audio as soon as it is sent hears a sample after all that comes before it.
        """
        if self._spoken_turn is None or self._playing is None:
            return
        summary, now = self.summary, time.monotonic()
        if summary.first_audio is None:
            summary.first_audio = now
        audible = self._pipeline.audible
        if summary.first_audible is None and audible is not None and audible < end:
            waits = max(0.0, self.playback.ends - asyncio.get_running_loop().time())
            summary.first_audible = now + waits + max(0, audible - self.offset) / self._rate
