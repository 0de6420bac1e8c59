"""The base of the services of contracts: they speak by VoxCPMService, with its messages and its limits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from google.protobuf.duration_pb2 import Duration

from voxcpm_grpc.errors import Aborted, InvalidRequest, Reason, Unavailable
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.contracts.errors import in_words_of
from voxcpm_server.models import Model, Models
from voxcpm_server.rpc.call import Call
from voxcpm_server.services.speech import VoxCPMService
from voxcpm_server.values.voice import Voice
from voxcpm_server.voices.uploads import Take

MAX_TEXT_BYTES = 5000  # bytes of a text whose audio is one reply, which waits in memory
AFTER_AUDIO = re.compile(r",? after audio was sent;.*")
MAX_VOICES = 1000
PAGE = 100


@dataclass(frozen=True, slots=True)
class Spoken:
    """All audio of a text."""

    audio: bytes
    format: pb.AudioFormat
    texts: tuple[str, ...]
    words: tuple[pb.WordTime, ...]


class ContractService:
    """Shares the callers, the limits, the metrics and the shutdown of VoxCPMService, which speaks.

    `fields` of its methods has the paths of our fields, and those of the contract that stand for them, for errors.
    """

    def __init__(self, service: VoxCPMService, models: Models) -> None:
        self.authenticator: Any = service.authenticator
        self.calls, self.gate = service.calls, service.gate
        self.metrics, self.tracing = service.metrics, service.tracing
        self.write_seconds = service.write_seconds
        self.models = models
        self._service = service

    async def speak(
        self,
        messages: AsyncIterator[pb.GenerateRequest],
        call: Call,
        reply: Callable[[pb.AudioChunk], Any],
        fields: Mapping[str, str],
    ) -> None:
        """Send what `reply` makes of each message of a Generate stream; None sends nothing. Raises VoxCPMError."""

        async def send(chunk: pb.AudioChunk) -> None:
            if (message := reply(chunk)) is not None:
                await call.replies.write(message)

        with in_words_of(fields):
            await self._service.speak(messages, call, send)

    async def speak_whole(
        self, messages: Iterable[pb.GenerateRequest], call: Call, fields: Mapping[str, str]
    ) -> Spoken:
        """All audio of a Generate stream. It counts among the recordings in memory. Raises VoxCPMError."""
        audio, texts, words, samples = bytearray(), list[str](), list[pb.WordTime](), 0
        format = pb.AudioFormat()
        take = self._held_until_sent(call)

        async def collect(chunk: pb.AudioChunk) -> None:
            nonlocal samples
            try:
                take(len(chunk.audio), "text")
            except InvalidRequest:
                size = len(audio) + len(chunk.audio)
                raise InvalidRequest(
                    f"the audio has {size} bytes or more, too many for one reply; send the text in parts, or ask for a "
                    "lower sample rate",
                    field="text",
                ) from None
            samples += chunk.sample_count
            audio.extend(chunk.audio)
            texts.extend(begun(chunk))
            words.extend(chunk.words)
            if chunk.HasField("header"):
                format.CopyFrom(chunk.header.format)

        with in_words_of(fields):
            try:
                await self._service.speak(each(messages), call, collect)
            except BaseException as error:
                call.audio_seconds = 0.0  # seconds that were sent
                if isinstance(error, Aborted):  # a retry of a stream would repeat the audio
                    cause = AFTER_AUDIO.sub("", error.message)
                    raise Unavailable(f"{cause}; no audio was sent, retry", reason=Reason.NO_ENGINE) from None
                raise
            finally:
                call.playback = None  # nobody listens before the end
            if not samples:
                raise InvalidRequest("there is nothing to speak: the text has no letter and no digit", field="text")
        return Spoken(bytes(audio), format, tuple(texts), tuple(words))

    def _held_until_sent(self, call: Call) -> Take:
        """Takes bytes of the budget for recordings until the caller has read the reply of the call."""
        task, account = asyncio.current_task(), ExitStack()
        assert task is not None
        task.add_done_callback(lambda _: account.close())
        return account.enter_context(self._service.uploads.account(call.caller.key))

    async def voices(self, call: Call) -> list[tuple[Model, Voice]]:
        """The newest stored voices that the caller may use, and then the presets, each with its model."""
        found: list[tuple[Model, Voice]] = []
        names = {model.info.fingerprint: model for model in reversed(list(self.models))}
        default, token = self.models.default, ""
        presets = [voice for model in self.models if model is not default for voice in model.catalog.preset_voices]
        while True:
            page, token = await default.catalog.page(call.caller, size=PAGE, token=token, others=presets)
            found += [(names[voice.fingerprint], voice) for voice in page if voice.fingerprint in names]
            if not token or len(found) >= MAX_VOICES:
                return found[:MAX_VOICES]


def check_length(text: str, field: str, remedy: str) -> None:
    """Raise InvalidRequest for a text that is too long for one reply."""
    size = len(text.encode())
    if size > MAX_TEXT_BYTES:
        raise InvalidRequest(f"{field} has {size} bytes and the limit is {MAX_TEXT_BYTES}; {remedy}", field=field)


def complete(config: pb.GenerateConfig) -> pb.GenerateRequest:
    """The first message of a stream whose text is complete."""
    config.segmentation.max_wait.CopyFrom(Duration())
    return pb.GenerateRequest(config=config)


def begun(chunk: pb.AudioChunk) -> tuple[str, ...]:
    """The texts of the segments whose audio begins in a message, as they are spoken."""
    return tuple(event.text for event in chunk.segment_events if event.kind == pb.SEGMENT_EVENT_KIND_STARTED)


async def each(messages: Iterable[pb.GenerateRequest]) -> AsyncIterator[pb.GenerateRequest]:
    for message in messages:
        yield message
