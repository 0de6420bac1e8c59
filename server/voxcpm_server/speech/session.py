"""One Generate stream: text in, speech out, in turns that can be flushed and interrupted.

Three tasks share the work. The reader handles messages: it cuts text into segments and queues them. The speaker has an
engine generate the segments. The writer encodes and sends the audio. An interrupt cancels the speaker and empties the
queues between the tasks. When all three tasks have waited for the idle timeout, the stream ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from voxcpm_grpc.errors import Exhausted, Internal, InvalidRequest, Unavailable, broken_off
from voxcpm_grpc.events import Admitted, Finished
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import Adapter, Conditioning, ModelInfo, Priority, VoicePart
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.aligners.pool import AlignerPool
from voxcpm_server.speech.character_quota import CharacterQuota
from voxcpm_server.speech.continuity import not_carried
from voxcpm_server.speech.output import Audio, End, FlushDone, Generated, Interrupted, Silence, Silent, Stop, WordsKnown
from voxcpm_server.speech.reader import Reader
from voxcpm_server.speech.speaker import Speaker
from voxcpm_server.speech.stream import Stream
from voxcpm_server.speech.timing import Playback, SegmentTiming
from voxcpm_server.speech.words.word_times import word_times
from voxcpm_server.speech.writer import ChunkWriter
from voxcpm_server.text.language import LanguageClaim
from voxcpm_server.text.preparation import TextPreparation
from voxcpm_server.text.segments.arriving_text import ArrivingText
from voxcpm_server.values.inputs import GenerateConfig, GenerateInput, Interrupt, TurnConfig
from voxcpm_server.values.outputs import EndReason, RequestWarning, Segment, Summary
from voxcpm_server.wire import replies

log = logging.getLogger(__name__)

SETTLE_SECONDS = 1.0  # seconds to wait at the end for the message that is being sent


class Session:
    """Runs once.

    voice, voice_name: conditioning of the stream, and its name for the header
    warnings: doubts about the request that arose before
    encode: encodes audio of the model, float32 [n] at its output rate, as a part of a voice
    remaining: seconds until the caller's deadline; None without one
    send: sends a message to the caller
    shorten: limits the wait for the caller to read a message, in seconds, by the name of a setting
    with_lora: completes the settings of a turn by the LoRA adapter of the voice
    on_segment: receives the times of each segment when it ends
    quota: the text that the caller may have spoken; None for any
    preparation: lexicons and normalisation of the text
    aligners: find the times of words; None estimates them
    chunks: of a reply stream that goes on afterwards, instead of one that begins with a header and ends with a summary
    open_sessions: has this one while it runs

    `summary` has the counters of the stream so far.
    """

    def __init__(
        self,
        config: GenerateConfig,
        voice: Conditioning,
        voice_name: str,
        *,
        pool: EnginePool,
        encode: Callable[[np.ndarray], Awaitable[VoicePart]],
        limits: LimitSettings,
        request_id: str,
        remaining: Callable[[], float | None],
        send: Callable[[pb.AudioChunk], Awaitable[None]],
        shorten: Callable[[float, str], None] = lambda seconds, rule: None,
        with_lora: Callable[[TurnConfig], TurnConfig] = lambda turn: turn,
        warnings: Iterable[RequestWarning] = (),
        on_segment: Callable[[SegmentTiming], None] | None = None,
        quota: CharacterQuota | None = None,
        preparation: TextPreparation | None = None,
        aligners: AlignerPool | None = None,
        chunks: ChunkWriter | None = None,
        open_sessions: set[Session] | None = None,
    ) -> None:
        info = pool.info
        if (turn := with_lora(config.turn)) is not config.turn:
            config = replace(config, turn=turn)
        preparation = preparation or TextPreparation()
        self._request_id, self._ends_reply = request_id, chunks is None
        self._chunks = chunks or _writer(info, config, request_id, voice_name, send, aligners)
        self.summary = self._chunks.summary
        self._stream = stream = Stream(config, info, limits, self._chunks)
        self._unfinished: dict[tuple[int, int], Segment] = {}  # segments whose end is not yet sent
        self._speaker = Speaker(
            stream,
            voice,
            pool=pool,
            encode=encode,
            remaining=remaining,
            on_segment=on_segment,
            quota=quota,
            preparation=preparation,
        )
        self._reader = Reader(
            stream,
            has_prompt=voice.prompt is not None,
            with_lora=with_lora,
            lexicon=preparation.lexicon,
            pauses=self._speaker.pauses,
            shorten=shorten,
        )
        log.debug(LogLine("stream", request_id=request_id, requests=f"{self._speaker.key}.TURN.SEGMENT"))
        self._claim = LanguageClaim(info.languages)
        self._chunks.warn(*warnings, *self._claim.of_language(config.segmentation.language), *not_carried(config, info))
        self._outcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open_sessions = set[Session]() if open_sessions is None else open_sessions
        self._tasks: set[asyncio.Task[None]] = set()
        self._speaking: asyncio.Task[None] | None = None

    @property
    def audio_seconds(self) -> float:
        """Length of the audio sent so far."""
        return self._chunks.offset / self._stream.config.output.sample_rate

    @property
    def playback(self) -> Playback | None:
        """The estimate of the gaps that a listener hears; None for batch streams, to which nobody listens yet."""
        return None if self._stream.config.priority is Priority.BATCH else self._chunks.playback

    @property
    def adapters(self) -> set[Adapter]:
        """The LoRA adapters of segments whose speech has not ended, of the open turn, and of the next one."""
        unfinished = (segment.turn_config for segment in self._unfinished.values())
        arriving = (work.turn_config for work in self._stream.work if isinstance(work, ArrivingText))
        configs = chain(self._reader.configs, unfinished, arriving)
        return {config.adapter for config in configs if config.adapter is not None}

    async def run(self, first: GenerateInput | None, messages: AsyncIterator[GenerateInput]) -> None:
        """Handle the message `first`, if there is one, and those that follow. Returns when every reply was sent.

        Raises VoxCPMError.
        """
        self._open_sessions.add(self)
        if self._chunks.words is not None:
            self._chunks.words.on_words = self._stream.output.wake
        self._speaking = self._spawn(self._speaker.run(self._on_growth))
        self._spawn(self._reader.run(first, messages, self._on_segment, self._interrupt))
        writing = self._spawn(self._write(), last=True)
        try:
            await self._outcome
        except (Exhausted, Unavailable) as error:
            if not self._chunks.offset:
                raise
            raise broken_off(error) from None
        finally:
            try:
                await self._end(writing)
            finally:
                self._open_sessions.discard(self)

    async def _end(self, writing: asyncio.Task[None]) -> None:
        """Cancel the tasks, the writer last: a status that overtakes the first message never reaches the client.

        The wait for a write is limited, because a client that does not read would block it forever.
        """
        self._stream.output.stop()
        others = self._tasks - {writing}
        for task in others:
            task.cancel()
        try:
            if not writing.done():
                await asyncio.wait([writing], timeout=SETTLE_SECONDS)
        finally:
            writing.cancel()
            if self._ends_reply:
                self._chunks.close()
        if unfinished := [task for task in (writing, *others) if not task.done()]:
            await asyncio.gather(*unfinished, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None], *, last: bool = False) -> asyncio.Task[None]:
        """Start a task whose failure ends the session; with `last` its success ends the session too."""

        def done(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error: BaseException | type[Internal] | None
            try:  # the read keeps asyncio from logging the error, and frees the frames of a task that was cancelled
                error = task.exception()
            except asyncio.CancelledError:
                error = Internal
            if self._outcome.done() or task.cancelling():
                return
            if error is not None:
                self._outcome.set_exception(error)
            elif last:
                self._outcome.set_result(None)

        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(done)
        return task

    # ---- for the reader

    def _on_segment(self, segment: Segment) -> None:
        self._chunks.warn(*self._claim.of_text(segment.text))
        self._unfinished[segment.key] = segment
        cut = "" if segment.cut is None else segment.cut.value
        self._log_segment("segment", segment, characters=len(segment.text), cut=cut)

    def _on_growth(self, segment: Segment) -> None:
        if segment.key not in self._unfinished:
            self._log_segment("segment", segment, characters=len(segment.text))
        if segment.cut is not None:
            self._chunks.warn(*self._claim.of_text(segment.text))
        self._unfinished[segment.key] = segment
        self._chunks.segment_grew(segment)

    async def _interrupt(self, message: Interrupt) -> None:
        assert self._speaking is not None
        played, sent = message.played_samples, self._chunks.offset
        if played is not None and not 0 <= played <= sent:
            raise InvalidRequest(
                f"played_samples is {played} and {sent} samples were sent; count the samples of the stream that were "
                "played, from 0 on and without the codec's delay",
                field="interrupt.played_samples",
            )
        waiting = chain(self._stream.output, self._stream.work)
        flushes = tuple(item.tag for item in waiting if isinstance(item, FlushDone))
        not_begun = self._speaker.not_begun()
        self._speaking.cancel()
        self._stream.window.cancel()
        self._stream.work.keep(lambda work: False)
        unsent = self._stream.output.unsent()
        dropped = self._stream.output.drop()
        await asyncio.wait([self._speaking])
        self._stream.window.on_sent(dropped)
        self._chunks.playback.cut(asyncio.get_running_loop().time())
        self._speaker.reset()
        self.summary.reason = EndReason.INTERRUPTED
        segments = *self._unfinished.values(), *not_begun
        self._stream.output.put(Interrupted(message.tag, played, segments, flushes, unsent))
        self._unfinished.clear()
        self._speaking = self._spawn(self._speaker.run(self._on_growth))

    def _message_follows(self) -> bool:
        """True if the reply ends next, or a flush is answered next: either has a message."""
        return self._ends_reply and self._stream.output.answers_next

    def _log_segment(self, event: str, segment: Segment, **fields: str | int | float) -> None:
        if not log.isEnabledFor(logging.DEBUG):
            return
        turn = self._chunks.first_turn + segment.turn
        log.debug(LogLine(event, request_id=self._request_id, turn=turn, segment=segment.index, **fields))

    # ---- the writer

    async def _write(self) -> None:
        chunks = self._chunks
        while True:
            match await self._stream.idle.wait(self._stream.output.get()):
                case Audio(segment, [*parts]) as audio:
                    samples = parts[0] if len(parts) == 1 else np.concatenate(parts)
                    await chunks.audio(samples, segment.turn, segment.index)
                    self._stream.window.on_sent(audio.chunks)
                case Generated(segment, Admitted() as admitted):
                    self._log_segment(
                        "slot",
                        segment,
                        queue_seconds=admitted.queue_seconds,
                        prompt_tokens=admitted.prompt_tokens,
                        cached_tokens=admitted.cached_tokens,
                    )
                    if segment.arrives:
                        segment = self._unfinished[segment.key]  # it may have grown
                    await chunks.segment_started(segment, self._stream.config.trim_leading_silence)
                case Generated(segment, Finished(reason=reason)):
                    self._unfinished.pop(segment.key, None)
                    self._log_segment("spoken", segment, reason=reason)
                    await chunks.segment_finished(segment, reason, message_follows=self._message_follows)
                case Silent(segment):
                    self._unfinished.pop(segment.key, None)
                    await chunks.segment_silent(segment)
                case Silence() as silence:
                    await chunks.silence(silence)
                case FlushDone(tag):
                    await chunks.flush(tag)
                case Interrupted() as interrupted:
                    await chunks.interrupted(interrupted)
                case WordsKnown():
                    await chunks.send_words()
                case End(reason):
                    self.summary.reason = reason or self.summary.reason
                    if self._ends_reply:
                        await chunks.finish()
                    return
                case Stop():
                    return


def _writer(
    info: ModelInfo,
    config: GenerateConfig,
    request_id: str,
    voice: str,
    send: Callable[[pb.AudioChunk], Awaitable[None]],
    aligners: AlignerPool | None,
) -> ChunkWriter:
    """The writer of a reply that begins with a header. It refers to no session, which would then refer to itself."""
    summary = Summary(began=time.monotonic())
    header = partial(replies.header, info, config.output, request_id, seed=config.turn.sampling.seed, voice=voice)
    words = word_times(aligners, config, info)
    return ChunkWriter(send, header, info.output_sample_rate, config.output, summary, words)
