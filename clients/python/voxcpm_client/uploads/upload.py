"""Uploads of recordings: parts with offsets, then a commit with lengths and digests."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import grpc

from voxcpm_client.errors import InvalidArgument, SpeechError
from voxcpm_client.messages import responses
from voxcpm_client.messages.requests import duration, turn_config
from voxcpm_client.status import CallStatus
from voxcpm_client.transport.connection import Connection
from voxcpm_client.transport.retry import Attempts
from voxcpm_client.values.arguments import check_options, check_string
from voxcpm_client.values.encodings import ENCODINGS
from voxcpm_client.values.options import Audition, SpeechOptions, TurnOptions, VoiceOptions
from voxcpm_client.values.results import Chunk, Header, Speech, SpeechWarning
from voxcpm_client.values.voices import Voice
from voxcpm_grpc.v1 import tts_pb2 as pb

PART_BYTES = 64 << 10
Message = TypeVar("Message", pb.AddPromptRequest, pb.AddReferenceRequest, pb.AddHifiRequest, pb.EncodeLatentsRequest)


@dataclass(frozen=True, slots=True)
class Upload:
    """The bytes of one recording. Its role distinguishes two recordings on one stream."""

    data: bytes
    role: Any = pb.AUDIO_ROLE_UNSPECIFIED

    def parts(self) -> Iterator[pb.AudioPart]:
        for offset in range(0, len(self.data), PART_BYTES):
            yield pb.AudioPart(data=self.data[offset : offset + PART_BYTES], offset_bytes=offset, role=self.role)

    def digest(self) -> pb.UploadDigest:
        return pb.UploadDigest(role=self.role, total_bytes=len(self.data), sha256=hashlib.sha256(self.data).digest())


async def messages(
    kind: type[Message], config: Any, uploads: Iterable[Upload], auditions: Iterable[pb.Audition] = ()
) -> AsyncIterator[Message]:
    """All messages of an upload. The server stores nothing without the commit."""
    yield kind(config=config)
    for upload in uploads:
        for part in upload.parts():
            yield kind(audio=part)
    yield kind(commit=pb.UploadCommit(digests=[upload.digest() for upload in uploads]))
    for audition in auditions:
        yield kind(audition=audition)  # pyright: ignore[reportCallIssue]: EncodeLatents has none


def source_format(options: VoiceOptions) -> pb.AudioFormat:
    """The format of raw PCM; unspecified for files, which declare their own format."""
    source = options.get("source")
    if source is None:
        return pb.AudioFormat()
    return pb.AudioFormat(encoding=ENCODINGS[source.encoding], sample_rate_hz=source.sample_rate)


def cleaning(options: VoiceOptions) -> dict[str, Any]:
    """The fields for changes of a recording before it is encoded."""
    return {name: bool(options.get(name)) for name in ("denoise", "trim_silence_vad")}


def stored_as(options: VoiceOptions) -> pb.VoiceOptions:
    stored = pb.VoiceOptions(
        request_id=options.get("request_id") or uuid.uuid4().hex,
        display_name=options.get("name") or "",
        labels=options.get("labels") or {},
    )
    if (ttl := options.get("ttl")) is not None:
        stored.ttl.CopyFrom(duration("ttl", ttl))
    if (lora := options.get("lora")) is not None:
        stored.lora = lora
    return stored


def preview(options: VoiceOptions) -> pb.Preview:
    """The option `preview`, and the announcement of `auditions`. Raises InvalidArgument for values out of range."""
    asked = options.get("preview")
    announced, timed = bool(options.get("auditions")), bool(options.get("word_timestamps"))
    if isinstance(asked, Audition):
        check_string(asked.text, "preview")
        turn = turn_config(_sampled(asked))
        return pb.Preview(
            mode=pb.PREVIEW_MODE_SYNTHESIS, text=asked.text, turn=turn, auditions=announced, word_timestamps=timed
        )
    mode = pb.PREVIEW_MODE_RECONSTRUCTION if asked else pb.PREVIEW_MODE_NONE
    return pb.Preview(mode=mode, auditions=announced, word_timestamps=timed)


def auditions(options: VoiceOptions) -> list[pb.Audition]:
    """The option `auditions`. Raises InvalidArgument for values out of range, and TypeError for other types."""
    asked = cast(object, options.get("auditions") or ())
    if isinstance(asked, str) or not isinstance(asked, Sequence):
        raise TypeError(f"auditions is {type(asked).__name__}; it must be a sequence of texts and Auditions")
    found: list[pb.Audition] = []
    for one in cast("Sequence[object]", asked):
        if not isinstance(one, str | Audition):
            raise TypeError(f"auditions has a {type(one).__name__}; it must be a sequence of texts and Auditions")
        audition = Audition(one) if isinstance(one, str) else one
        check_string(audition.text, "auditions")
        if not audition.text:
            raise InvalidArgument("an audition has no text; give the words to speak", field="auditions")
        found.append(pb.Audition(text=audition.text, turn=turn_config(_sampled(audition))))
    return found


def _sampled(audition: Audition) -> SpeechOptions:
    """The style and the sampling of an audition as options."""
    names = [one.name for one in dataclasses.fields(audition) if one.name != "text"]
    given = {name: value for name in names if (value := getattr(audition, name)) is not None}
    check_options("Audition", given, TurnOptions)
    return cast(SpeechOptions, given)


async def add_voice(
    connection: Connection,
    kind: type[Message],
    config: Any,
    uploads: list[Upload],
    auditions: list[pb.Audition],
    attempts: Attempts,
) -> Voice:
    """Upload a voice. A retry is safe, because the same content gets the same id."""

    async def attempt(remaining: float | None) -> Voice:
        method = getattr(connection.stub, kind.__name__.removesuffix("Request"))
        requests = messages(kind, config, uploads, auditions)
        call = method(requests, timeout=remaining, metadata=connection.metadata)
        status = CallStatus(call)
        try:
            return await _collect(call, config.options.request_id, auditions)
        except grpc.aio.AioRpcError as error:
            raise await status.final(error) from None

    return await connection.repeat(attempt, attempts, config.options.request_id)


async def encode(
    connection: Connection, config: pb.EncodeLatentsConfig, recording: Upload, attempts: Attempts
) -> pb.EncodeLatentsResponse:
    """Upload a recording for its latents. A retry is safe, because the server stores nothing."""

    async def attempt(remaining: float | None) -> pb.EncodeLatentsResponse:
        requests = messages(pb.EncodeLatentsRequest, config, [recording])
        call = connection.stub.EncodeLatents(requests, timeout=remaining, metadata=connection.metadata)
        status = CallStatus(call)
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise await status.final(error) from None

    return await connection.repeat(attempt, attempts, config.request_id)


async def _collect(call: AsyncIterator[pb.AudioChunk], request_id: str, auditions: Sequence[pb.Audition]) -> Voice:
    """The voice with the audio of the call: turn 0 is the preview, and the auditions follow it."""
    header: Header | None = None
    handle: pb.VoiceHandle | None = None
    turns: list[list[Chunk]] = [[] for _ in range(1 + len(auditions))]
    warnings: tuple[SpeechWarning, ...] = ()
    words: list[pb.WordTime] = []
    async for message in call:
        if message.HasField("header"):
            header = responses.header(message.header)
        if message.HasField("handle"):
            handle = message.handle
        warnings += responses.warnings(message.warnings, request_id)
        words += message.words
        if message.audio and header is not None and message.turn_index < len(turns):
            turns[message.turn_index].append(responses.chunk(message, header))
    if handle is None:
        raise SpeechError("the server ended the upload without a voice", request_id=request_id)
    if header is None:
        return responses.voice(handle, None, (), warnings)
    preview = _speech(turns[0], header, words, 0) if turns[0] else None
    spoken = [_speech(turns[number], _header_of(one, header), words, number) for number, one in enumerate(auditions, 1)]
    return responses.voice(handle, preview, tuple(spoken), warnings)


def _speech(chunks: Sequence[Chunk], header: Header, words: Iterable[pb.WordTime], turn: int) -> Speech:
    """The audio of a turn of the call, with its words."""
    offset = chunks[0].offset if chunks else 0
    own = responses.words((one for one in words if one.turn_index == turn), offset)
    return responses.speech(chunks, header, None, words=own)


def _header_of(audition: pb.Audition, header: Header) -> Header:
    """The header of an audition, which may have a seed of its own."""
    sampling = audition.turn.sampling
    return dataclasses.replace(header, seed=sampling.seed) if sampling.HasField("seed") else header
