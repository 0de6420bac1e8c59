"""The speaker of a Generate stream: has an engine generate the segments."""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from voxcpm_grpc.duration_text import duration_text
from voxcpm_grpc.errors import Exhausted, Reason, TooLong
from voxcpm_grpc.peekable_queue import PeekableQueue
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import MAX_SEED, Admitted, AudioChunk, Conditioning, Event, Finished, Request, VoicePart
from voxcpm_server.speech.character_quota import CharacterQuota
from voxcpm_server.speech.continuity import Context
from voxcpm_server.speech.idle_timeout import IdleTimeout
from voxcpm_server.speech.playback import Playback
from voxcpm_server.speech.queues import End, FlushDone, Generated, OutputQueue, Silence, Silent, Work
from voxcpm_server.speech.text_preparation import TextPreparation
from voxcpm_server.speech.timing import SegmentTiming
from voxcpm_server.speech.window import Window
from voxcpm_server.wire.inputs import Continuity, GenerateConfig
from voxcpm_server.wire.outputs import EndReason, Segment, Summary

DEADLINE_SHARE = 0.9  # of the time left, for the wait: a refusal that arrives after the deadline is lost
QUEUE_RETRY_SECONDS = 2.0
VOICE_SECONDS = 1.0  # of speech before an interrupt make its voice known to the listener


class Speaker:
    """Moves items from `work` to `output`, where each segment becomes the events of its generation.

    Segments are generated one after the other. If they are independent, the next one is submitted while the current
    one is generated.

    voice: conditioning of the stream
    encode: encodes audio of the model, float32 [n] at its output rate, as a reference
    remaining: seconds until the caller's deadline; None without one
    window: the limit on the audio that was made and not sent
    playback: the playback of the audio that was sent
    max_carry_seconds: speech carried from segment to segment
    on_segment: receives the times of each segment when it ends
    quota: the text that the caller may have spoken; None for any
    preparation: changes the text of segments before they are spoken

    The ids of its requests begin with `key`.
    """

    def __init__(
        self,
        config: GenerateConfig,
        voice: Conditioning,
        *,
        pool: EnginePool,
        encode: Callable[[np.ndarray], Awaitable[VoicePart]],
        remaining: Callable[[], float | None],
        window: Window,
        playback: Playback,
        max_carry_seconds: float,
        work: PeekableQueue[Work],
        output: OutputQueue,
        summary: Summary,
        idle: IdleTimeout,
        quota: CharacterQuota | None,
        preparation: TextPreparation,
        on_segment: Callable[[SegmentTiming], None] | None = None,
    ) -> None:
        info = pool.info
        self._config = config
        self._pool = pool
        self._encode = encode
        self._remaining = remaining
        self._window = window
        self._playback = playback
        self._work = work
        self._output = output
        self._summary = summary
        self._idle = idle
        self._on_segment = on_segment
        self._timings: dict[EngineCall[Event], SegmentTiming] = {}
        self._call: EngineCall[Event]  # the call in progress
        # The next segment, which has started already; without a call if it has nothing to say.
        self._ahead: tuple[Segment, EngineCall[Event] | None] | None = None
        self._quota = quota
        self._preparation = preparation
        self.key = uuid.uuid4().hex  # callers may repeat their request ids
        self._context = Context(
            voice,
            style=config.turn.style,
            carry=config.continuity is Continuity.CARRY,
            max_steps=int(max_carry_seconds * info.input_sample_rate / info.input_samples_per_step),
            abilities=info.abilities,
            adapter=config.turn.adapter,
        )
        self._begun = self._summary.segments > 0  # so that it cannot be retried
        self._has_paused = False  # silence was sent
        self.pauses: list[Silence | Silent] = []  # and silent segments, which wait for the first segment
        self._first_speech: list[np.ndarray] = []  # audio of the segment that decides the voice, at the output rate

    async def run(self) -> None:
        """Run until cancelled; the generation in progress is cancelled too. May run again afterwards."""
        try:
            await self._keep_timbre()
            while True:
                work = await self._idle.wait(self._work.get())
                if not isinstance(work, Segment):
                    self._pass_on(work)
                    continue
                if self._ahead is None:
                    segment = await self._preparation.prepare(work)
                    if segment.text:
                        await self._window.wait()
                        await self._wait_for_quota()
                    self._ahead = segment, self._begin(segment)
                (segment, call), self._ahead = self._ahead, None
                if call is None:
                    self._pass_on(Silent(segment))
                    continue
                self._call = call
                try:
                    await self._speak(segment)
                finally:
                    await self._close(self._call)
        finally:
            if self._ahead is not None:
                (_, call), self._ahead = self._ahead, None
                if call is not None:
                    await self._close(call)

    async def _speak(self, segment: Segment) -> None:
        with self._spent(segment):
            first = await self._admitted(segment)
        if segment.turn_config.max_attempts > 1:
            await self._speak_whole(segment, first)
            return
        self._on_event(segment, first)
        async for event in self._call:
            self._on_event(segment, event)
            following = self._work.peek()
            if self._ahead is None and isinstance(following, Segment) and self._may_go_ahead(following):
                following = await self._preparation.prepare(following)
                self._ahead = following, self._begin(following)

    async def _speak_whole(self, segment: Segment, first: Event) -> None:
        """Generate a segment again as long as its speech runs on, and put the last attempt into the output."""
        most, attempt = segment.turn_config.max_attempts, segment
        for left in reversed(range(most)):
            events = [first]
            async for event in self._call:
                events.append(event)
                self._call.allow(len(events) + self._window.size)  # the audio waits here for as long as it takes
            finished = events[-1]
            if not (left and isinstance(finished, Finished) and finished.ran_on):
                for event in events:
                    self._on_event(segment, event)
                return
            self._summary.steps += finished.steps
            self._summary.engine += finished.engine_seconds
            attempt = _with_next_seed(attempt)
            await self._again(attempt)
            first = await self._admitted(attempt)

    async def _admitted(self, segment: Segment) -> Event:
        """The first event of a segment. Its context becomes as short as the engine needs it."""
        while True:
            try:
                return await self._first_event()
            except TooLong as error:
                if not self._context.shorten(error.positions - error.limit):
                    raise
            await self._again(segment)

    async def _again(self, segment: Segment) -> None:
        """Replace the call of a segment by a new one."""
        self._timings.pop(self._call, None)  # the attempt that follows is the segment's
        await self._close(self._call)
        self._call = self._generate(segment)

    def _pass_on(self, work: Silence | Silent | FlushDone | End) -> None:
        """Put an item that is not generated into the output.

        Pauses wait for the first segment, because a stream that has sent audio cannot be retried if it gets no slot.
        """
        if isinstance(work, Silent) and self._summary.first_audio is None:
            self._summary.reason = EndReason.NOTHING_TO_SAY
        if isinstance(work, Silence | Silent) and not self._begun:
            self.pauses.append(work)
            return
        self._put_pauses()
        self._has_paused = self._has_paused or isinstance(work, Silence)
        self._output.put(work)

    def _put_pauses(self) -> None:
        if any(isinstance(item, Silence) for item in self.pauses):
            self._begun = self._has_paused = True
        for item in self.pauses:
            self._output.put(item)
        self.pauses.clear()

    async def _close(self, call: EngineCall[Event]) -> None:
        await call.aclose()
        self._summary.continuations += call.continuations
        self._window.close(call)
        if self._on_segment is not None and (timing := self._timings.pop(call, None)):
            timing.engine, timing.ended, timing.error = call.engine, time.monotonic(), sys.exception()
            self._on_segment(timing)

    def _may_go_ahead(self, following: Segment) -> bool:
        if self._context.needs_speech or self._context.begins_anew(following):
            return False
        return self._window.next_limit > 0 and not (self._quota and self._quota.wait())

    async def _wait_for_quota(self) -> None:
        """Wait until the quota of the caller allows another segment.

        Raises Exhausted instead if the stream has not begun. A stream that has begun cannot be retried.
        """
        if self._quota is None or not (seconds := self._quota.wait()):
            return
        if not self._begun:
            raise Exhausted(
                f"this caller has used up its quota of text, and the limit is {self._quota.per_minute} characters "
                f"a minute; retry in {duration_text(seconds)}",
                retry_after=seconds,
                reason=Reason.TEXT_QUOTA_USED_UP,
                limit=self._quota.per_minute,
            )
        await self._quota.wait_in_order()

    @contextmanager
    def _spent(self, segment: Segment) -> Iterator[None]:
        """Count a segment against the quota of the caller, unless the block fails: then it gets no slot."""
        characters = len(segment.source)
        if self._quota:
            self._quota.spend(characters)
        try:
            yield
        except BaseException:
            if self._quota:
                self._quota.spend(-characters)
            raise

    def reset(self) -> None:
        """Forget the speech before an interrupt."""
        self.pauses.clear()
        self._context.reset()

    async def _keep_timbre(self) -> None:
        """Keep the voice of first speech that an interrupt cut off, if enough of it was made."""
        made = sum(map(len, self._first_speech))
        if self._context.wants_timbre and made >= VOICE_SECONDS * self._pool.info.output_sample_rate:
            self._context.remember_timbre(await self._encode(np.concatenate(self._first_speech)))
        self._first_speech.clear()  # not earlier: another interrupt may cancel the encoding

    def _begin(self, segment: Segment) -> EngineCall[Event] | None:
        """Generate a segment; None if it has nothing to say."""
        return self._generate(segment) if segment.text else None

    def _generate(self, segment: Segment) -> EngineCall[Event]:
        text, style, conditioning = self._context.conditioning_for(segment)
        request = Request(
            id=f"{self.key}.{segment.turn}.{segment.index}",
            text=text,
            style=style,
            sampling=segment.turn_config.sampling,
            conditioning=replace(conditioning, adapter=segment.turn_config.adapter),
            turn=segment.turn,
            segment=segment.index,
            keep_speech=self._context.needs_speech,
            continues=self._begun,
            lead_seconds=self._lead_seconds,
            priority=self._config.priority,
        )
        call = self._pool.generate(
            request,
            window=self._window.size,
            first_limit=self._window.next_limit,
            seconds_left=self._remaining(),
            max_wait=self._max_wait(),
        )
        self._window.open(call)
        if self._on_segment is not None:
            self._timings[call] = SegmentTiming(segment)
        return call

    @property
    def _lead_seconds(self) -> float:
        """The audio that its listener has not played so far, as long as a step of the model makes it."""
        info = self._pool.info
        unsent = self._window.unsent * info.samples_per_step / info.output_sample_rate
        return max(0.0, self._playback.ends - asyncio.get_running_loop().time()) + unsent

    def _max_wait(self) -> float:
        """The longest wait for a slot, or for an engine that restarts."""
        max_queue, remaining = self._config.max_queue, self._remaining()
        return max_queue if remaining is None else min(max_queue, DEADLINE_SHARE * remaining)

    async def _first_event(self) -> Event:
        """The first event of the call in progress. Raises Exhausted if a stream without audio gets no slot in time.

        A stream with audio waits until its deadline, because it cannot be retried. The wait for an engine that restarts
        ends in the pool.
        """
        call, wait = self._call, self._max_wait()
        if self._has_paused or self._summary.speaks:
            return await anext(call)
        loop = asyncio.get_running_loop()

        def expire() -> None:
            if self._pool.waits_for_engine(call):
                return
            if wait == self._config.max_queue or self._pool.waits_for_slot(call):
                limit.reschedule(loop.time())  # otherwise the deadline itself ends the call

        timer = loop.call_later(wait, expire)
        try:
            async with asyncio.timeout(None) as limit:
                return await anext(call)
        except TimeoutError:
            raise Exhausted(
                f"no slot became free within {duration_text(wait)}; retry later or raise max_queue_time",
                retry_after=QUEUE_RETRY_SECONDS,
                reason=Reason.QUEUE_TIMEOUT,
                waited_seconds=f"{wait:g}",
            ) from None
        finally:
            timer.cancel()

    def _on_event(self, segment: Segment, event: Event) -> None:
        summary = self._summary
        if self._timings and not (isinstance(event, AudioChunk) and event.index):
            self._timings[self._call].on_event(event)
        match event:
            case AudioChunk(samples=samples):
                self._window.on_chunk()
                summary.speaks = True
                if not self._context.has_voice:
                    self._first_speech.append(samples)
            case Admitted():
                if summary.queue is None:
                    summary.queue = event.queue_seconds
                summary.cached_tokens += event.cached_tokens
                summary.segments += 1
                self._put_pauses()
                self._begun = True
            case Finished():
                summary.steps += event.steps
                summary.engine += event.engine_seconds
                summary.reason = event.reason
                self._context.remember(segment, event)
                self._first_speech.clear()
        self._output.put(Generated(segment, event))


def _with_next_seed(segment: Segment) -> Segment:
    sampling = segment.turn_config.sampling
    sampling = replace(sampling, seed=(sampling.seed + 1) % (MAX_SEED + 1))
    return replace(segment, turn_config=replace(segment.turn_config, sampling=sampling))
