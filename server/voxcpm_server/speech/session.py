"""One Generate stream: text in, speech out, in turns that can be flushed and interrupted.

Three tasks share the work. The reader takes messages, cuts text into segments and queues them. The speaker has them
generated, one after the other (or one ahead, when they are independent). The writer encodes and sends. An interrupt
cancels the speaker and empties the queues between them, and so does every other end of the stream: closing the
engine's generator is the one way to free a slot. When all three have waited for long, nobody needs the stream any more.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import numpy as np

from voxcpm_grpc.errors import Aborted, Exhausted, Internal, InvalidRequest, Unavailable
from voxcpm_grpc.peekable_queue import PeekableQueue
from voxcpm_grpc.pool.engine_pool import EnginePool, Stream
from voxcpm_grpc.request import Admitted, AudioChunk, Conditioning, Event, Finished, FinishReason, Request
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech.chunk_writer import ChunkWriter
from voxcpm_server.speech.continuity import Context
from voxcpm_server.speech.idle_timeout import IdleTimeout
from voxcpm_server.speech.output_queue import OutputQueue
from voxcpm_server.speech.queues import Dropped, End, Ended, Flushed, Spoken, Started, Stop, Work
from voxcpm_server.speech.turns import Turns
from voxcpm_server.wire.inputs import Continuity, Finish, Flush, GenerateConfig, GenerateInput, Interrupt, Silence, Text
from voxcpm_server.wire.outputs import EndReason, Header, Segment, Summary

REASONS = {FinishReason.STOP: EndReason.COMPLETE, FinishReason.MAX_STEPS: EndReason.MAX_STEPS}
MERGED_SECONDS = 0.5  # audio that one message may take along when the client is slow
DEADLINE_SHARE = 0.9  # of the time left, for the wait: a refusal that arrives after the deadline says nothing
QUEUE_RETRY_SECONDS = 2.0
MAX_UNANSWERED = 1000  # flushes and interrupts
SETTLE_SECONDS = 1.0  # in which a message that is being sent at the end has gone out
HEARD_SECONDS = 1.0  # of speech that an interrupt cut off, from which on its voice is known to the listener


class Session:
    """Runs once. `remaining` gives the seconds until the caller's deadline, None without one."""

    def __init__(
        self,
        config: GenerateConfig,
        voice: Conditioning,
        voice_name: str,
        *,
        pool: EnginePool,
        encode: Callable[[np.ndarray], Awaitable[np.ndarray]],
        max_text_chars: int,
        max_carry_seconds: float,
        idle_seconds: float,
        request_id: str,
        remaining: Callable[[], float | None],
        send: Callable[[pb.AudioChunk], Awaitable[None]],
    ) -> None:
        info = pool.info
        self._config = config
        self._pool = pool
        self._max_text_chars = max_text_chars
        self._remaining = remaining
        self._key = uuid.uuid4().hex  # callers may repeat their request ids
        self._turns = Turns(config.segmentation)
        self._context = Context(
            voice,
            style=config.style,
            carry=config.continuity is Continuity.CARRY,
            max_patches=int(max_carry_seconds * info.input_sample_rate / info.samples_per_patch),
        )
        self._header = Header(
            request_id=request_id,
            format=config.output,
            model=info.name,
            fingerprint=info.fingerprint,
            seed=config.sampling.seed,
            voice=voice_name,
        )
        self._encode = encode
        self._heard: list[np.ndarray] = []  # audio of a segment that decides the voice, at the model's output rate
        self._summary = Summary()
        self._chunks = ChunkWriter(send, self._final_header, info.output_sample_rate, config.output)
        self._work: PeekableQueue[Work] = PeekableQueue()
        self._unfinished: dict[tuple[int, int], Segment] = {}  # heard, and their end not yet sent
        max_lead = config.max_lead * info.output_sample_rate / 2  # the other half may wait behind the engine
        self._lead_chunks = max(1, int(max_lead / info.samples_per_step))
        self._output = OutputQueue(max_lead=max_lead, max_merged=MERGED_SECONDS * info.output_sample_rate)
        self._accepted: float | None = None  # when the first segment was complete
        self._first_text: float | None = None  # when it came
        self._last_read = self._began = time.monotonic()
        self._idleness = IdleTimeout(tasks=3, seconds=idle_seconds)
        self._tasks: set[asyncio.Task[None]] = set()
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._speaker: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None]

    @property
    def audio_seconds(self) -> float:
        return self._chunks.offset / self._config.output.sample_rate

    async def run(self, messages: AsyncIterator[GenerateInput]) -> None:
        """Returns when the stream was answered completely. Raises VoxCPMError."""
        self._speaker = self._spawn(self._speak())
        self._spawn(self._read(messages))
        self._writer = self._spawn(self._write(), last=True)
        try:
            await self._outcome
        except Unavailable as error:
            if not self._chunks.offset:
                raise
            raise Aborted(f"{error.message}; part of the speech was already sent") from None
        finally:
            await self._end(self._tasks - {self._writer})

    async def _end(self, others: set[asyncio.Task[None]]) -> None:
        """Cancel the tasks, the writer last: a status that overtakes the first message never reaches the client.

        A client that does not read would keep us here, so a blocked write is given up.
        """
        self._output.stop()
        for task in others:
            task.cancel()
        try:
            if not self._writer.done():
                await asyncio.wait([self._writer], timeout=SETTLE_SECONDS)
        finally:
            self._writer.cancel()
        await asyncio.gather(self._writer, *others, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None], *, last: bool = False) -> asyncio.Task[None]:
        """A task whose failure, or with `last` its success, ends the session."""

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            if self._outcome.done() or task.cancelling():
                return
            error = Internal() if task.cancelled() else task.exception()  # cancelled by itself: nobody would notice
            if error is not None:
                self._outcome.set_exception(error)
            elif last:
                self._outcome.set_result(None)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(done)
        return task

    # ---- the reader

    async def _read(self, messages: AsyncIterator[GenerateInput]) -> None:
        try:
            async with self._idleness.patience:
                await self._obey(messages)
        except TimeoutError:
            await self._fall_silent()

    async def _obey(self, messages: AsyncIterator[GenerateInput]) -> None:
        finished = False
        while (message := await self._next(messages)) is not None:
            if finished:
                raise InvalidRequest("a message follows finish, which must be the last")
            match message:
                case Text(text):
                    await self._hear(text)
                case Flush(tag, end_turn):
                    self._check_unanswered()
                    await self._flush()
                    self._work.put(Flushed(tag))
                    if end_turn:
                        self._turns.end()
                case Interrupt(tag):
                    self._check_unanswered()
                    await self._interrupt(tag)
                case Finish():
                    await self._finish()
                    finished = True
                case Silence():
                    await self._fall_silent()
                    return
                case GenerateConfig():
                    raise InvalidRequest("config must be the first message of the stream", field="config")
        if not finished:
            await self._finish()

    async def _next(self, messages: AsyncIterator[GenerateInput]) -> GenerateInput | None:
        """The next message, None after the last one. Submits meanwhile what a pause of the text completes."""
        if (wait := self._turns.max_wait) is None:
            message = await self._idleness.waited(anext(messages, None))
        else:
            reading = asyncio.ensure_future(anext(messages, None))
            try:
                left = max(0.0, self._last_read + wait - time.monotonic())
                await self._idleness.waited(asyncio.wait([reading], timeout=left))
                if not reading.done():
                    for segment in self._turns.pause():
                        self._submit(segment)
                message = await self._idleness.waited(reading)
            finally:
                reading.cancel()
        self._last_read = time.monotonic()
        return message

    def _check_unanswered(self) -> None:
        waiting = sum(isinstance(item, Flushed | Dropped) for box in (self._work, self._output) for item in box)
        if waiting >= MAX_UNANSWERED:
            raise InvalidRequest(f"{waiting} flushes and interrupts wait for their answers; read these first")

    async def _hear(self, text: str) -> None:
        queued = sum(work.end - work.start for work in self._work if isinstance(work, Segment))
        waiting, limit = queued + self._turns.pending + len(text), self._max_text_chars
        if waiting > limit:
            raise InvalidRequest(
                f"{waiting} characters wait to be spoken and the limit is {limit}; send text as it is spoken",
                field="text",
            )
        if text and self._first_text is None:
            self._first_text = time.monotonic()
        async for segment in self._turns.hear(text):
            self._submit(segment)

    async def _flush(self) -> None:
        async for segment in self._turns.flush():
            self._submit(segment)

    def _submit(self, segment: Segment) -> None:
        if self._accepted is None:
            self._accepted = time.monotonic()
        self._unfinished[segment.turn, segment.index] = segment
        self._work.put(segment)

    async def _finish(self) -> None:
        await self._flush()
        if self._turns.heard and not self._turns.speakable:
            raise InvalidRequest("there is nothing to speak: the text has no letter and no digit", field="text")
        self._work.put(End())

    async def _fall_silent(self) -> None:
        """As `_finish`, of a caller that asked for nothing and so is refused nothing."""
        await self._flush()
        self._work.put(End(EndReason.IDLE))

    async def _interrupt(self, tag: str) -> None:
        assert self._speaker is not None
        self._speaker.cancel()
        self._work.keep(lambda work: False)
        self._output.drop()  # earlier interrupts keep their answers
        await asyncio.wait([self._speaker])
        self._turns.end()
        self._context.reset()
        self._summary.reason = EndReason.INTERRUPTED
        self._output.put(Dropped(tag, tuple(self._unfinished.values())))
        self._unfinished.clear()
        self._speaker = self._spawn(self._speak())

    # ---- the speaker

    async def _speak(self) -> None:
        ahead: Stream[Event] | None = None
        try:
            await self._keep_timbre()
            while True:
                work = await self._idleness.waited(self._work.get())
                if not isinstance(work, Segment):
                    self._output.put(work)
                    continue
                events, ahead = ahead or self._generate(work), None
                async with aclosing(events):
                    await self._admission(work, events)
                    async for event in events:
                        self._take(work, event)
                        await self._output.room()
                        following = self._work.peek()
                        if ahead is None and not self._context.needs_latents and isinstance(following, Segment):
                            ahead = self._generate(following)
        finally:
            if ahead is not None:
                await ahead.aclose()

    async def _keep_timbre(self) -> None:
        """If an interrupt cut off the speech that decides the voice, go on with what was heard of it."""
        heard = sum(map(len, self._heard))
        if not self._context.has_voice and heard >= HEARD_SECONDS * self._pool.info.output_sample_rate:
            self._context.remember_timbre(await self._encode(np.concatenate(self._heard)))
        self._heard.clear()  # not before: another interrupt may end this one's work

    def _generate(self, segment: Segment) -> Stream[Event]:
        text, conditioning = self._context.conditioning_for(segment)
        request = Request(
            id=f"{self._key}.{segment.turn}.{segment.index}",
            text=text,
            sampling=self._config.sampling,
            conditioning=conditioning,
            turn=segment.turn,
            segment=segment.index,
            keep_latents=self._context.needs_latents,
            continues=self._summary.segments > 0,
        )
        return self._pool.generate(request, lead_chunks=self._lead_chunks)

    async def _admission(self, segment: Segment, events: Stream[Event]) -> None:
        """Raises Exhausted when the segment gets no slot in time."""
        wait, remaining = self._config.max_queue, self._remaining()
        if remaining is not None:
            wait = min(wait, DEADLINE_SHARE * remaining)
        try:
            async with asyncio.timeout(wait):
                event = await anext(events)
        except TimeoutError:
            raise Exhausted(
                f"no slot became free within {wait:.1f} s; retry later or raise max_queue_time",
                retry_after=QUEUE_RETRY_SECONDS,
            ) from None
        self._take(segment, event)

    def _take(self, segment: Segment, event: Event) -> None:
        summary = self._summary
        match event:
            case Admitted():
                if summary.queue is None:
                    summary.queue = event.queue_seconds
                summary.cached_tokens += event.cached_tokens
                summary.segments += 1
                self._output.put(Started(segment))
            case AudioChunk():
                if summary.first_audio is None:
                    now = time.monotonic()
                    summary.first_audio = now - (self._accepted or now)
                    summary.text_to_audio = now - (self._first_text or now)
                if not self._context.has_voice:
                    self._heard.append(event.samples)
                self._output.put(Spoken(segment, event.samples))
            case Finished():
                summary.steps += event.steps
                summary.engine += event.engine_seconds
                summary.reason = REASONS[event.reason]
                self._context.remember(segment, event)
                self._heard.clear()
                self._output.put(Ended(segment, summary.reason))

    # ---- the writer

    def _final_header(self) -> Header:
        return replace(self._header, queue=self._summary.queue or 0.0)

    async def _write(self) -> None:
        chunks = self._chunks
        while True:
            match await self._idleness.waited(self._output.get()):
                case Started(segment):
                    await chunks.begin()
                    chunks.segment_started(segment)
                case Spoken(segment, samples):
                    await chunks.audio(samples, segment.turn, segment.index)
                case Ended(segment, reason):
                    self._unfinished.pop((segment.turn, segment.index), None)
                    await chunks.segment_finished(segment, reason)
                case Flushed(tag):
                    await chunks.flush(tag)
                case Dropped(tag, segments):
                    await chunks.interrupted(tag, segments)
                case End(reason):
                    summary = self._summary
                    summary.reason = reason or summary.reason
                    summary.turns, summary.chars = self._turns.opened, self._turns.chars
                    summary.wall = time.monotonic() - self._began
                    await chunks.finish(summary)
                    return
                case Stop():
                    return
