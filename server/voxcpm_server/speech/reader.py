"""The reader of a Generate stream: handles the caller's messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace

from voxcpm_grpc.errors import InvalidRequest
from voxcpm_grpc.peekable_queue import PeekableQueue
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_server.speech.idle_timeout import IdleTimeout
from voxcpm_server.speech.queues import End, FlushDone, Interrupted, Silence, Work
from voxcpm_server.speech.turns import Turns
from voxcpm_server.wire.inputs import (
    Finish,
    Flush,
    GenerateConfig,
    GenerateInput,
    Idle,
    Interrupt,
    Pause,
    Text,
    TurnChange,
    TurnConfig,
)
from voxcpm_server.wire.outputs import EndReason, Segment, Summary

IDLE_END_SECONDS = 1.0  # for the end of a stream that was idle and had no text
IDLE_RULE = "limits.stream_idle_seconds"
MAX_UNANSWERED = 1000  # flushes and interrupts
MAX_PAUSES = 1000


class Reader:
    """Cuts the text of the messages into segments, and queues these as work for the speaker.

    turns: cuts the text, and has the settings of turns
    has_prompt: True if the voice has a prompt, with which some models take no style
    limits: of the text that waits, and of the time without work
    idle: the timeout of the stream, which ends in the task of the reader
    work: the queue to the speaker
    waiting: returns all items that wait to be spoken or sent
    summary: gets the times of the first text and of the first segment
    on_segment: receives each segment before it is queued
    interrupt: stops the speech, and drops everything that was not sent
    shorten: limits the wait for the caller to read a message, in seconds, by the name of a setting
    """

    def __init__(
        self,
        turns: Turns,
        *,
        info: ModelInfo,
        has_prompt: bool,
        limits: LimitSettings,
        idle: IdleTimeout,
        work: PeekableQueue[Work],
        waiting: Callable[[], Iterable[object]],
        summary: Summary,
        on_segment: Callable[[Segment], None],
        interrupt: Callable[[Interrupt], Awaitable[None]],
        shorten: Callable[[float, str], None],
    ) -> None:
        self._turns = turns
        self._info = info
        self._has_prompt = has_prompt
        self._max_text_chars = limits.max_text_chars
        self._idle_seconds = limits.stream_idle_seconds
        self._idle = idle
        self._work = work
        self._waiting = waiting
        self._summary = summary
        self._on_segment = on_segment
        self._interrupt = interrupt
        self._shorten = shorten
        self._seed = turns.config.sampling.seed  # of turns without their own
        self._last_read = time.monotonic()

    async def run(self, first: GenerateInput | None, messages: AsyncIterator[GenerateInput]) -> None:
        """Handle the message `first`, if there is one, and those that follow, to the last.

        Raises InvalidRequest.
        """
        try:
            async with self._idle:
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

    async def _next(self, messages: AsyncIterator[GenerateInput]) -> GenerateInput | None:
        """The next message; None after the last one. A pause of the text meanwhile completes its sentence."""
        if self._turns.max_wait is None:
            message = await self._idle.wait(anext(messages, None))
        else:
            reading = asyncio.ensure_future(anext(messages, None))
            try:
                while not reading.done() and (wait := self._turns.max_wait) is not None:
                    left = max(0.0, self._last_read + wait - time.monotonic())
                    await self._idle.wait(asyncio.wait([reading], timeout=left))
                    if not reading.done():
                        for segment in self._turns.pause():
                            self._submit(segment)
                message = await self._idle.wait(reading)
            finally:
                reading.cancel()
        self._last_read = time.monotonic()
        return message

    async def _handle(self, message: GenerateInput) -> None:
        match message:
            case Text(text):
                await self._on_text(text)
            case Flush(tag, end_turn):
                _check_unanswered(self._waiting())
                await self._flush()
                self._work.put(FlushDone(tag))
                if end_turn:
                    self._turns.end()
            case Pause(milliseconds):
                _check_pauses(self._waiting())
                await self._flush()
                self._work.put(Silence(self._turns.separate(), 0, milliseconds))
            case Interrupt():
                _check_unanswered(self._waiting())
                await self._interrupt(message)
                self._turns.end()
            case TurnChange(config, has_seed):
                self._on_turn_change(config, has_seed)
            case GenerateConfig():
                raise InvalidRequest("config must be the first message of the stream", field="config")

    async def _on_text(self, text: str) -> None:
        queued = sum(len(work.source) for work in self._work if isinstance(work, Segment))
        waiting, limit = queued + self._turns.pending + len(text), self._max_text_chars
        if waiting > limit:
            raise InvalidRequest(
                f"{waiting} characters wait to be spoken and the limit is {limit}; send text as it is spoken",
                field="text",
            )
        if text and self._summary.first_text is None:
            self._summary.first_text = time.monotonic()
        async for segment in self._turns.feed(text):
            self._submit(segment)

    async def _flush(self) -> None:
        async for segment in self._turns.flush():
            self._submit(segment)

    def _submit(self, segment: Segment) -> None:
        if segment.text and self._summary.first_segment is None:
            self._summary.first_segment = time.monotonic()
        self._on_segment(segment)
        self._work.put(segment)

    def _on_turn_change(self, config: TurnConfig, has_seed: bool) -> None:
        if config.style and self._has_prompt:
            self._info.require_style_with_prompt("turn.style")
        if not has_seed:
            config = replace(config, sampling=replace(config.sampling, seed=self._seed))
        self._turns.config = config

    async def _on_end(self) -> None:
        if not self._turns.chars:  # a caller that reads nothing has opened a stream for nothing
            self._shorten(self._idle_seconds, IDLE_RULE)
        await self._flush()
        if self._turns.has_text and not self._turns.speakable:
            raise InvalidRequest("there is nothing to speak: the text has no letter and no digit", field="text")
        self._work.put(End())

    async def _on_idle(self) -> None:
        self._shorten(self._idle_seconds if self._turns.chars else min(IDLE_END_SECONDS, self._idle_seconds), IDLE_RULE)
        await self._flush()
        self._work.put(End(EndReason.IDLE))


def _check_unanswered(items: Iterable[object]) -> None:
    """Raise InvalidRequest if no more flushes and interrupts may wait for their replies."""
    waiting = sum(isinstance(item, FlushDone | Interrupted) for item in items)
    if waiting >= MAX_UNANSWERED:
        raise InvalidRequest(
            f"{waiting} flushes and interrupts wait for their replies and the limit is {MAX_UNANSWERED}; "
            "read replies before sending more"
        )


def _check_pauses(items: Iterable[object]) -> None:
    """Raise InvalidRequest if no more pauses may wait to be sent."""
    waiting = sum(isinstance(item, Silence) for item in items)
    if waiting >= MAX_PAUSES:
        raise InvalidRequest(
            f"{waiting} pauses wait to be sent and the limit is {MAX_PAUSES}; read audio before sending more",
            field="pause",
        )
