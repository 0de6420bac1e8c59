"""The reader of a Generate stream: handles the caller's messages, and cuts their text into turns and segments."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_server.speech.output import End, FlushDone, Interrupted, Silence, Silent
from voxcpm_server.speech.stream import Stream
from voxcpm_server.text.lexicon import Lexicon
from voxcpm_server.text.segments.arriving_text import ArrivingSegmenter, ArrivingText
from voxcpm_server.text.segments.markup_segmenter import MarkupSegmenter
from voxcpm_server.text.segments.segmenter import Segmenter
from voxcpm_server.text.words.characters import is_speakable
from voxcpm_server.values.inputs import (
    Finish,
    Flush,
    GenerateConfig,
    GenerateInput,
    Idle,
    Interrupt,
    Pause,
    SegmentationMode,
    Text,
    TurnChange,
    TurnConfig,
)
from voxcpm_server.values.outputs import EndReason, Segment
from voxcpm_server.wire.fields import inside
from voxcpm_server.wire.texts import check_streamed

IDLE_END_SECONDS = 1.0  # seconds for the end of a stream that was idle and had no text
IDLE_RULE = "limits.stream_idle_seconds"
MAX_UNANSWERED = 1000  # flushes and interrupts count
MAX_PAUSES = 1000
SLICE = 64  # code points that are cut into segments in one callback of the event loop
BURST = 8  # a flush makes so many segments in one callback


class Reader:
    """Cuts the text of the messages into segments, and queues these as work for the speaker.

    A turn opens with its first text or pause.

    has_prompt: True if the voice has a prompt, with which some models take no style
    with_lora: completes the settings of a turn by the LoRA adapter of the voice
    lexicon: of text that is spoken while it arrives
    pauses: those that wait with the speaker
    shorten: limits the wait for the caller to read a message, in seconds, by the name of a setting
    """

    def __init__(
        self,
        stream: Stream,
        *,
        has_prompt: bool,
        with_lora: Callable[[TurnConfig], TurnConfig],
        lexicon: Lexicon,
        pauses: Iterable[Silence | Silent],
        shorten: Callable[[float, str], None],
    ) -> None:
        self._stream, config = stream, stream.config
        self._opened = 0  # so many turns have opened so far
        self._is_empty = True  # no character of text has come
        self._segmentation = config.segmentation
        self._arrives = config.segmentation.mode is SegmentationMode.TOKENS  # text is spoken while it arrives
        self._turn_config = config.turn  # turns that open from now on have it
        self._seed = config.turn.sampling.seed  # turns without a seed of their own have it
        self._lexicon = lexicon
        self._is_open = False
        self._segmenter = self._new_segmenter("")  # it belongs to the latest turn
        self._has_text = False  # any text message counts, even an empty one
        self._speakable = False  # some of the text can be spoken
        self._has_prompt = has_prompt
        self._with_lora = with_lora
        self._pauses = pauses
        self._shorten = shorten
        self._last_read = time.monotonic()
        self._on_segment: Callable[[Segment], None]
        self._interrupt: Callable[[Interrupt], Awaitable[None]]

    @property
    def configs(self) -> tuple[TurnConfig, ...]:
        """The settings of the open turn and of those that open from now on."""
        return (self._segmenter.turn_config, self._turn_config) if self._is_open else (self._turn_config,)

    async def run(
        self,
        first: GenerateInput | None,
        messages: AsyncIterator[GenerateInput],
        on_segment: Callable[[Segment], None],
        interrupt: Callable[[Interrupt], Awaitable[None]],
    ) -> None:
        """Handle the message `first`, if there is one, and those that follow, to the last. Raises InvalidRequest.

        on_segment: receives each segment before it is queued
        interrupt: stops the speech, and drops everything that was not sent
        """
        self._on_segment, self._interrupt = on_segment, interrupt
        try:
            async with self._stream.idle.limit():
                message = first or await self._next(messages)
                while message is not None and not isinstance(message, Finish | Idle):
                    await self._handle(message)
                    message = await self._next(messages)
                if isinstance(message, Idle):
                    await self._on_idle()
                    return
                await self._on_end()
                if message is not None and await self._next(messages) is not None:
                    raise InvalidRequest("a message follows finish, which must be the last", field="finish")
        except TimeoutError:
            await self._on_idle()
        finally:
            del self._on_segment, self._interrupt  # their owner refers to this reader

    async def _next(self, messages: AsyncIterator[GenerateInput]) -> GenerateInput | None:
        """The next message; None after the last one. A pause of the text meanwhile completes its sentence."""
        if self._segmenter.max_wait is None:
            message = await self._stream.idle.wait(anext(messages, None))
        else:
            reading = asyncio.ensure_future(anext(messages, None))
            try:
                while not reading.done() and (wait := self._segmenter.max_wait) is not None:
                    left = max(0.0, self._last_read + wait - time.monotonic())
                    await self._stream.idle.wait(asyncio.wait([reading], timeout=left))
                    if not reading.done():
                        self._submit(self._segmenter.pause())
                message = await self._stream.idle.wait(reading)
            finally:
                reading.cancel()
        self._last_read = time.monotonic()
        return message

    async def _handle(self, message: GenerateInput) -> None:
        match message:
            case Text(text):
                await self._on_text(text)
            case Flush(tag, end_turn):
                self._check_unanswered()
                await self._flush()
                self._stream.work.put(FlushDone(tag))
                if end_turn:
                    self._end_turn()
            case Pause(milliseconds):
                self._check_pauses()
                await self._flush()
                self._open_turn()
                self._segmenter.separate()
                self._stream.work.put(Silence(self._opened - 1, 0, milliseconds))
            case Interrupt():
                self._check_unanswered()
                await self._interrupt(message)
                self._end_turn()
            case TurnChange(config, has_seed):
                self._on_turn_change(config, has_seed)
            case GenerateConfig():
                raise InvalidRequest("config must be the first message of the stream", field="config")

    async def _on_text(self, text: str) -> None:
        queued = sum(len(work.source) for work in self._stream.work if isinstance(work, Segment | ArrivingText))
        waiting, limit = queued + self._segmenter.pending + len(text), self._stream.limits.max_text_chars
        if waiting > limit:
            raise InvalidRequest(
                f"{waiting} characters wait to be spoken and the limit is {limit}; send text as it is spoken",
                field="text",
            )
        if text and self._stream.summary.first_text is None:
            self._stream.summary.first_text = time.monotonic()
        self._has_text = True
        self._is_empty = self._is_empty and not text
        self._speakable = self._speakable or is_speakable(text)
        if text:
            self._open_turn()
        self._stream.summary.chars += len(text)
        for start in range(0, len(text), SLICE):
            if start:
                await asyncio.sleep(0)
            self._submit(self._segmenter.feed(text[start : start + SLICE]))

    async def _flush(self) -> None:
        """Submit all text that waits for the end of its segment."""
        for count, segment in enumerate(self._segmenter.flush(), 1):
            self._submit((segment,))
            if count % BURST == 0:
                await asyncio.sleep(0)

    def _submit(self, segments: Iterable[Segment | ArrivingText]) -> None:
        for segment in segments:
            if isinstance(segment, Segment):
                if segment.text and self._stream.summary.first_segment is None:
                    self._stream.summary.first_segment = time.monotonic()
                self._on_segment(segment)
            self._stream.work.put(segment)

    def _open_turn(self) -> None:
        """Open a turn if none is open."""
        if not self._is_open:
            self._is_open = True
            self._segmenter = self._new_segmenter(self._segmenter.last)
            self._opened += 1
            self._stream.summary.turns += 1

    def _end_turn(self) -> None:
        """Close the turn and discard waiting text. The next text opens a new turn."""
        if self._is_open:
            self._is_open = False
            self._segmenter = self._new_segmenter(self._segmenter.last)

    def _new_segmenter(self, after: str) -> Segmenter | MarkupSegmenter | ArrivingSegmenter:
        """The segmenter of a turn that opens, or the one between two turns. after: the last character of the speech"""
        turn, config = self._opened, self._turn_config
        if self._arrives:
            return ArrivingSegmenter(self._segmentation, config, turn, after=after, lexicon=self._lexicon)
        kind = MarkupSegmenter if config.normalize and self._is_open else Segmenter
        return kind(self._segmentation, config, turn, after=after)

    def _on_turn_change(self, config: TurnConfig, has_seed: bool) -> None:
        config = self._with_lora(config)
        if config.style and self._has_prompt:
            self._stream.info.require_style_with_prompt("turn.style")
        if self._arrives:
            with inside("turn"):
                check_streamed(config)
        if not has_seed:
            config = replace(config, sampling=replace(config.sampling, seed=self._seed))
        self._turn_config = config

    async def _on_end(self) -> None:
        if self._is_empty:  # a caller that reads nothing has opened a stream for nothing
            self._shorten(self._stream.limits.stream_idle_seconds, IDLE_RULE)
        await self._flush()
        if self._has_text and not self._speakable:
            raise InvalidRequest("there is nothing to speak: the text has no letter and no digit", field="text")
        self._stream.work.put(End())

    async def _on_idle(self) -> None:
        seconds = self._stream.limits.stream_idle_seconds
        self._shorten(min(IDLE_END_SECONDS, seconds) if self._is_empty else seconds, IDLE_RULE)
        await self._flush()
        self._stream.work.put(End(EndReason.IDLE))

    def _unsent(self) -> Iterator[object]:
        """All that waits to be spoken or sent."""
        return chain(self._stream.work, self._pauses, self._stream.output)

    def _check_unanswered(self) -> None:
        """Raise InvalidRequest if no more flushes and interrupts may wait for their replies."""
        waiting = sum(isinstance(item, FlushDone | Interrupted) for item in self._unsent())
        if waiting >= MAX_UNANSWERED:
            raise InvalidRequest(
                f"{waiting} flushes and interrupts wait for their replies and the limit is {MAX_UNANSWERED}; "
                "read replies before sending more"
            )

    def _check_pauses(self) -> None:
        """Raise InvalidRequest if no more pauses may wait to be sent."""
        waiting = sum(isinstance(item, Silence) for item in self._unsent())
        if waiting >= MAX_PAUSES:
            raise InvalidRequest(
                f"{waiting} pauses wait to be sent and the limit is {MAX_PAUSES}; read audio before sending more",
                field="pause",
            )
