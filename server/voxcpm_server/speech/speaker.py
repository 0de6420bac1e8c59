"""The speaker of a Generate stream: has an engine generate the segments."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import numpy as np

from voxcpm_grpc.errors import Exhausted
from voxcpm_grpc.peekable_queue import PeekableQueue
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import Admitted, AudioChunk, Conditioning, Event, Finished, Request
from voxcpm_server.speech.continuity import Context
from voxcpm_server.speech.idle_timeout import IdleTimeout
from voxcpm_server.speech.queues import Generated, OutputQueue, Work
from voxcpm_server.wire.inputs import Continuity, GenerateConfig
from voxcpm_server.wire.outputs import Segment, Summary

DEADLINE_SHARE = 0.9  # of the time left, for the wait: a refusal that arrives after the deadline is lost
QUEUE_RETRY_SECONDS = 2.0
VOICE_SECONDS = 1.0  # of speech before an interrupt make its voice known to the listener


class Speaker:
    """Moves items from `work` to `output`, where each segment becomes the events of its generation.

    Segments are generated one after the other. If they are independent, the next one is submitted while the current
    one is generated.

    voice: conditioning of the stream
    encode: encodes audio of the model, float32 [n] at its output rate, to latents [patches, P, D]
    remaining: seconds until the caller's deadline; None without one
    lead_chunks: chunks that the engine may make ahead of this task
    max_carry_seconds: speech carried from segment to segment
    """

    def __init__(
        self,
        config: GenerateConfig,
        voice: Conditioning,
        *,
        pool: EnginePool,
        encode: Callable[[np.ndarray], Awaitable[np.ndarray]],
        remaining: Callable[[], float | None],
        lead_chunks: int,
        max_carry_seconds: float,
        work: PeekableQueue[Work],
        output: OutputQueue,
        summary: Summary,
        idle: IdleTimeout,
    ) -> None:
        info = pool.info
        self._config = config
        self._pool = pool
        self._encode = encode
        self._remaining = remaining
        self._lead_chunks = lead_chunks
        self._work = work
        self._output = output
        self._summary = summary
        self._idle = idle
        self._key = uuid.uuid4().hex  # callers may repeat their request ids
        self._context = Context(
            voice,
            style=config.style,
            carry=config.continuity is Continuity.CARRY,
            max_patches=int(max_carry_seconds * info.input_sample_rate / info.samples_per_patch),
        )
        self._first_speech: list[np.ndarray] = []  # audio of the segment that decides the voice, at the output rate

    async def run(self) -> None:
        """Run until cancelled; the generation in progress is cancelled too. May run again afterwards."""
        ahead: EngineCall[Event] | None = None
        try:
            await self._keep_timbre()
            while True:
                work = await self._idle.wait(self._work.get())
                if not isinstance(work, Segment):
                    self._output.put(work)
                    continue
                events, ahead = ahead or self._generate(work), None
                async with aclosing(events):
                    self._on_event(work, await self._admission(events))
                    async for event in events:
                        self._on_event(work, event)
                        await self._output.room()
                        following = self._work.peek()
                        if ahead is None and not self._context.needs_latents and isinstance(following, Segment):
                            ahead = self._generate(following)
        finally:
            if ahead is not None:
                await ahead.aclose()

    def reset(self) -> None:
        """Forget the speech before an interrupt."""
        self._context.reset()

    async def _keep_timbre(self) -> None:
        """Keep the voice of first speech that an interrupt cut off, if enough of it was made."""
        made = sum(map(len, self._first_speech))
        if not self._context.has_voice and made >= VOICE_SECONDS * self._pool.info.output_sample_rate:
            self._context.remember_timbre(await self._encode(np.concatenate(self._first_speech)))
        self._first_speech.clear()  # not earlier: another interrupt may cancel the encoding

    def _generate(self, segment: Segment) -> EngineCall[Event]:
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

    async def _admission(self, events: EngineCall[Event]) -> Event:
        """The first event of a segment. Raises Exhausted if the segment gets no slot in time."""
        wait, remaining = self._config.max_queue, self._remaining()
        if remaining is not None:
            wait = min(wait, DEADLINE_SHARE * remaining)
        try:
            async with asyncio.timeout(wait):
                return await anext(events)
        except TimeoutError:
            raise Exhausted(
                f"no slot became free within {wait:.1f} s; retry later or raise max_queue_time",
                retry_after=QUEUE_RETRY_SECONDS,
            ) from None

    def _on_event(self, segment: Segment, event: Event) -> None:
        summary = self._summary
        match event:
            case AudioChunk(samples=samples):
                if summary.first_audio is None:
                    summary.first_audio = time.monotonic()
                if not self._context.has_voice:
                    self._first_speech.append(samples)
            case Admitted():
                if summary.queue is None:
                    summary.queue = event.queue_seconds
                summary.cached_tokens += event.cached_tokens
                summary.segments += 1
            case Finished():
                summary.steps += event.steps
                summary.engine += event.engine_seconds
                summary.reason = event.reason
                self._context.remember(segment, event)
                self._first_speech.clear()
        self._output.put(Generated(segment, event))
