"""The speaker of a Generate stream: has an engine generate the segments."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from voxcpm_grpc.errors import TooLong
from voxcpm_grpc.events import Admitted, AudioChunk, Event, Finished
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import Conditioning, Request, VoicePart
from voxcpm_server.speech.calls.slot_wait import SlotWait, longest_wait
from voxcpm_server.speech.calls.spoken_part import SpokenPart, next_number, segments_of
from voxcpm_server.speech.character_quota import CharacterQuota
from voxcpm_server.speech.continuity import Context
from voxcpm_server.speech.output import End, FlushDone, Generated, Silence, Silent
from voxcpm_server.speech.stream import Stream
from voxcpm_server.speech.timing import SegmentTiming
from voxcpm_server.text.preparation import TextPreparation
from voxcpm_server.text.segments.arriving_text import ArrivingText
from voxcpm_server.text.words.characters import is_speakable
from voxcpm_server.values.outputs import EndReason, Segment

MOST_STUCK = 3  # the rest of a text is given up after so many parts in a row of which the model has read nothing
VOICE_SECONDS = 1.0  # seconds of speech before an interrupt that make its voice known to the listener


class Speaker:
    """Moves items from `work` to `output`, where each segment becomes the events of its generation.

    Segments are generated one after the other. If they are independent, the next one is submitted while the current
    one is generated.

    voice: conditioning of the stream
    encode: encodes audio of the model, float32 [n] at its output rate, as a reference
    remaining: seconds until the caller's deadline; None without one
    on_segment: receives the times of each segment when it ends
    quota: the text that the caller may have spoken; None for any
    preparation: changes the text of segments before they are spoken

    The ids of its requests begin with `key`.
    """

    def __init__(
        self,
        stream: Stream,
        voice: Conditioning,
        *,
        pool: EnginePool,
        encode: Callable[[np.ndarray], Awaitable[VoicePart]],
        remaining: Callable[[], float | None],
        quota: CharacterQuota | None,
        preparation: TextPreparation,
        on_segment: Callable[[SegmentTiming], None] | None = None,
    ) -> None:
        self._stream = stream
        self._pool = pool
        self._encode = encode
        self._remaining = remaining
        self._on_segment = on_segment
        self._timings: dict[EngineCall[Event], SegmentTiming] = {}
        self._call: EngineCall[Event]  # this call is in progress
        # The next segment has started already. It has no call if it has nothing to say.
        self._ahead: tuple[Segment, EngineCall[Event] | None] | None = None
        self._part: SpokenPart | None = None  # what the call in progress speaks of a text that arrives
        self._waiting: tuple[ArrivingText, int] | None = None  # a text and the place of its next part
        self._numbers: tuple[int, int] = (0, 0)  # a turn, and the number of the next such part there
        self._on_growth: Callable[[Segment], object] | None = None
        self._quota = quota
        self._counted = 0  # characters of the segment in progress
        self._preparation = preparation
        self.key = uuid.uuid4().hex  # callers may repeat their request ids
        self._context = Context(voice, stream.config, stream.info, stream.limits.max_carry_seconds)
        self._begun = self._stream.summary.segments > 0  # a stream that has spoken cannot be retried
        self._has_paused = False  # silence was sent
        self.pauses: list[Silence | Silent] = []  # silent segments wait here, too, for the first segment

    async def run(self, on_growth: Callable[[Segment], object]) -> None:
        """Run to the end of the stream. Until then it may be cancelled, with the generation in progress, and run again.

        on_growth: receives each segment whose text arrives while it is spoken, when it begins and when it has changed
        """
        self._on_growth = on_growth
        try:
            await self._context.keep_timbre(self._encode, VOICE_SECONDS * self._stream.info.output_sample_rate)
            while True:
                work = await self._stream.idle.wait(self._stream.work.get())
                if isinstance(work, ArrivingText):
                    await self._speak_arriving(work)
                    continue
                if not isinstance(work, Segment):
                    self._pass_on(work)
                    if isinstance(work, End):
                        return
                    continue
                if self._ahead is None:
                    segment = await self._preparation.prepare(work)
                    if segment.text:
                        await self._wait_for_room()
                    self._ahead = segment, self._begin(segment)
                (segment, call), self._ahead = self._ahead, None
                if call is None:
                    self._pass_on(Silent(segment))
                    continue
                self._call = call
                try:
                    await self._speak(segment)
                finally:
                    self._close(self._call)
        finally:
            self._on_growth = None
            if self._ahead is not None:
                (_, call), self._ahead = self._ahead, None
                if call is not None:
                    self._close(call)

    async def _speak(self, segment: Segment) -> None:
        self._counted = 0
        self._count(len(segment.source))
        first = await self._admitted(segment)
        self._counted = 0  # it is not given back any more
        if segment.turn_config.max_attempts > 1:
            await self._speak_whole(segment, first)
            return
        self._on_event(segment, first)
        while await self._call.forward(partial(self._take, segment)):
            following = self._stream.work.peek()
            assert isinstance(following, Segment)
            following = await self._preparation.prepare(following)
            self._ahead = following, self._begin(following)

    def _take(self, segment: Segment, event: Event) -> bool:
        """Put an event of a segment into the output. True if the segment that follows may start now."""
        self._on_event(segment, event)
        if self._ahead is not None:
            return False
        following, context = self._stream.work.peek(), self._context
        if not isinstance(following, Segment) or context.needs_speech or context.begins_anew(following):
            return False
        return self._stream.window.next_limit > 0 and not (self._quota and self._quota.wait())

    async def _speak_arriving(self, arriving: ArrivingText) -> None:
        """Speak a text while it arrives, in another part each time that the model ends the speech before it."""
        begin = stuck = 0
        self._waiting = arriving, begin
        try:
            while await self._stream.idle.wait(arriving.speakable(begin)):
                if self._stream.summary.first_segment is None:
                    self._stream.summary.first_segment = time.monotonic()
                await self._wait_for_room()
                end = await self._speak_part(arriving, begin)
                stuck = stuck + 1 if end == begin else 0
                begin = end
                self._waiting = arriving, begin
                if stuck == MOST_STUCK:
                    await self._stream.idle.wait(arriving.whole())
                    return
        finally:
            self._waiting = None

    async def _speak_part(self, arriving: ArrivingText, begin: int) -> int:
        """Speak a text from a place on. Returns the place where the next part begins."""
        turn, number = next_number(self._numbers, arriving.turn)
        self._waiting, self._numbers, self._counted = None, (turn, number + 1), 0
        self._part = part = SpokenPart(arriving, number, begin, self._on_part)
        self._call = self._generate(part.segment)
        try:
            event = await self._admitted(part.segment)
            while not isinstance(event, Finished):
                self._on_event(part.segment, event)
                event = await self._next_event()
            segment = part.finish(event)
            if timing := self._timings.get(self._call):
                timing.segment = segment
            self._on_event(segment, event)
        finally:
            part.detach()
            self._close(self._call)
            self._part = None
        return part.end

    async def _next_event(self) -> Event:
        """The next event of the call in progress. The speaker is idle while the call may wait for text."""
        if self._part is None or not self._part.may_grow():
            return await anext(self._call)
        with self._stream.idle.waiting() as self._part.on_end:
            return await anext(self._call)

    def not_begun(self) -> Sequence[Segment]:
        """The segments of texts that arrive, and of which no part is in progress."""
        waiting = [] if self._waiting is None else [self._waiting]
        waiting += ((work, 0) for work in self._stream.work if isinstance(work, ArrivingText))
        return segments_of(waiting, self._numbers)

    async def _speak_whole(self, segment: Segment, first: Event) -> None:
        """Generate a segment again as long as its speech runs on, and put the last attempt into the output."""
        most, attempt = segment.turn_config.max_attempts, segment
        for left in reversed(range(most)):
            events = [first]
            async for event in self._call:
                events.append(event)
                if isinstance(event, AudioChunk):
                    self._call.allow(event.end + self._stream.window.size)  # it waits here for as long as it takes
            finished = events[-1]
            if not (left and isinstance(finished, Finished) and finished.ran_on):
                for event in events:
                    self._on_event(segment, event)
                return
            self._stream.summary.on_made(finished)
            attempt = attempt.with_next_seed()
            self._again(attempt)
            first = await self._admitted(attempt)

    async def _admitted(self, segment: Segment) -> Event:
        """The first event of a segment. Its context becomes as short as the engine needs it.

        The text of a segment that gets no slot does not count. Raises Exhausted if a stream without audio gets no slot
        in time. A stream with audio waits until its deadline, because it cannot be retried.
        """
        try:
            while True:
                try:
                    if self._has_paused or self._stream.summary.speaks:
                        return await self._next_event()
                    most = self._stream.config.max_queue
                    wait = SlotWait(self._pool, self._call, longest_wait(most, self._remaining()), most)
                    return await wait.first_event(self._next_event())
                except TooLong as error:
                    if not self._context.shorten(error.positions - error.limit):
                        raise
                self._again(segment)
        except BaseException:
            self._count(-self._counted)
            raise

    def _again(self, segment: Segment) -> None:
        """Replace the call of a segment by a new one."""
        self._timings.pop(self._call, None)  # the attempt that follows is the segment's
        self._close(self._call)
        self._call = self._generate(segment if self._part is None else self._part.segment)

    def _pass_on(self, work: Silence | Silent | FlushDone | End) -> None:
        """Put an item that is not generated into the output.

        Pauses wait for the first segment, because a stream that has sent audio cannot be retried if it gets no slot.
        """
        if isinstance(work, Silent) and self._stream.summary.first_audio is None:
            self._stream.summary.reason = EndReason.NOTHING_TO_SAY
        if isinstance(work, Silence | Silent) and not self._begun:
            self.pauses.append(work)
            return
        self._put_pauses()
        self._has_paused = self._has_paused or isinstance(work, Silence)
        self._stream.output.put(work)

    def _put_pauses(self) -> None:
        if any(isinstance(item, Silence) for item in self.pauses):
            self._begun = self._has_paused = True
        for item in self.pauses:
            self._stream.output.put(item)
        self.pauses.clear()

    def _close(self, call: EngineCall[Event]) -> None:
        call.cancel()
        self._stream.summary.continuations += call.continuations
        self._stream.window.close(call)
        if self._on_segment is not None and (timing := self._timings.pop(call, None)):
            timing.engine, timing.ended, timing.error = call.engine, time.monotonic(), sys.exception()
            self._on_segment(timing)

    async def _wait_for_room(self) -> None:
        await self._stream.window.wait()
        if self._quota is not None:
            await self._quota.admit(begun=self._begun)

    def _count(self, characters: int) -> None:
        """Count text of the segment in progress against the quota of the caller. A negative number is given back."""
        self._counted += characters
        if self._quota:
            self._quota.spend(characters)

    def _on_part(self, segment: Segment) -> None:
        """Count and report a segment whose text arrives, when it begins and when it has changed."""
        self._count(len(segment.source) - self._counted)
        if self._on_growth is not None:
            self._on_growth(segment)

    def reset(self) -> None:
        """Forget the speech before an interrupt."""
        self.pauses.clear()
        self._context.reset()

    def _begin(self, segment: Segment) -> EngineCall[Event] | None:
        """Generate a segment; None if it has nothing to say."""
        return self._generate(segment) if segment.text else None

    def _generate(self, segment: Segment) -> EngineCall[Event]:
        text, style, conditioning = self._context.conditioning_for(segment)
        if self._part is not None:
            text = self._part.begun(text)
        info = self._stream.info
        speed, adapter = segment.turn_config.effects.speed, segment.turn_config.adapter
        unsent = self._stream.window.unsent * info.step_seconds / speed  # a step makes so much at most
        request = Request(
            id=f"{self.key}.{segment.turn}.{segment.index}",
            text=text,
            style=style,
            language=segment.turn_config.language,
            sampling=segment.turn_config.sampling,
            conditioning=conditioning if adapter is None else replace(conditioning, adapter=adapter),
            turn=segment.turn,
            segment=segment.index,
            keep_speech=self._context.needs_speech,
            continues=self._begun,
            speed=speed,
            lead_seconds=max(0.0, self._stream.playback.ends - asyncio.get_running_loop().time()) + unsent,
            priority=self._stream.config.priority,
            open=self._part is not None and self._part.may_grow(),
            arrives=self._part is not None,
        )
        seconds_left = self._remaining()
        call = self._pool.generate(
            request,
            window=self._stream.window.size,
            first_limit=self._stream.window.next_limit,
            seconds_left=seconds_left,
            max_wait=longest_wait(self._stream.config.max_queue, seconds_left),
        )
        self._stream.window.open(call)
        if self._part is not None:
            self._part.attach(call)
        if self._on_segment is not None:
            self._timings[call] = SegmentTiming(segment)
        return call

    def _on_event(self, segment: Segment, event: Event) -> None:
        if isinstance(event, AudioChunk):
            if self._timings and not event.index:
                self._timings[self._call].on_event(event)
            self._stream.window.on_chunks(event.chunks)
            self._stream.summary.speaks = True
            self._context.hear(event.samples)
            self._stream.output.put_audio(segment, event)
            return
        if self._timings:
            self._timings[self._call].on_event(event)
        summary = self._stream.summary
        if isinstance(event, Admitted):
            summary.queue = event.queue_seconds if summary.queue is None else summary.queue
            summary.cached_tokens += event.cached_tokens
            summary.segments += 1
            self._put_pauses()
            self._begun = True
        else:
            summary.on_made(event)
            summary.reason = event.reason
            summary.left_unread += is_speakable(event.unread)
            self._context.remember(segment, event)
        self._stream.output.put(Generated(segment, event))
