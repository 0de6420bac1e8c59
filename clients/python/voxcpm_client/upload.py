"""Uploads of recordings: parts with offsets, then a commit with lengths and digests."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from voxcpm_client import responses
from voxcpm_client.connection import Connection
from voxcpm_client.errors import SpeechError
from voxcpm_client.options import VoiceOptions
from voxcpm_client.requests import duration
from voxcpm_client.results import ENCODINGS, Chunk, Header, SpeechWarning, Voice
from voxcpm_client.retry import Attempts
from voxcpm_client.status import CallStatus
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


async def messages(kind: type[Message], config: Any, uploads: Iterable[Upload]) -> AsyncIterator[Message]:
    """All messages of an upload. The server stores nothing without the commit at the end."""
    yield kind(config=config)
    for upload in uploads:
        for part in upload.parts():
            yield kind(audio=part)
    yield kind(commit=pb.UploadCommit(digests=[upload.digest() for upload in uploads]))


def source_format(options: VoiceOptions) -> pb.AudioFormat:
    """The format of raw PCM; unspecified for files, which declare their own format."""
    source = options.get("source")
    if source is None:
        return pb.AudioFormat()
    return pb.AudioFormat(encoding=ENCODINGS[source.encoding], sample_rate_hz=source.sample_rate)


def stored_as(options: VoiceOptions) -> pb.VoiceOptions:
    stored = pb.VoiceOptions(
        request_id=options.get("request_id") or uuid.uuid4().hex,
        display_name=options.get("name") or "",
        labels=options.get("labels") or {},
    )
    if (ttl := options.get("ttl")) is not None:
        stored.ttl.CopyFrom(duration("ttl", ttl))
    return stored


def preview(options: VoiceOptions) -> pb.Preview:
    return pb.Preview(mode=pb.PREVIEW_MODE_RECONSTRUCTION if options.get("preview") else pb.PREVIEW_MODE_NONE)


async def add_voice(
    connection: Connection, kind: type[Message], config: Any, uploads: list[Upload], attempts: Attempts
) -> Voice:
    """Upload a voice. A retry is safe, because the same content gets the same id."""
    method = getattr(connection.stub, kind.__name__.removesuffix("Request"))

    async def attempt(remaining: float | None) -> Voice:
        call = method(messages(kind, config, uploads), timeout=remaining, metadata=connection.metadata)
        status = CallStatus(call)
        try:
            return await _collect(call, config.options.request_id)
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


async def _collect(call: AsyncIterator[pb.AudioChunk], request_id: str) -> Voice:
    header: Header | None = None
    handle: pb.VoiceHandle | None = None
    chunks: list[Chunk] = []
    warnings: tuple[SpeechWarning, ...] = ()
    async for message in call:
        if message.HasField("header"):
            header = responses.header(message.header)
        if message.HasField("handle"):
            handle = message.handle
        warnings += responses.warnings(message.warnings, request_id)
        if message.audio and header is not None:
            chunks.append(responses.chunk(message, header))
    if handle is None:
        raise SpeechError("the server ended the upload without a voice", request_id=request_id)
    preview = responses.speech(chunks, header, None) if header and chunks else None
    return responses.voice(handle, preview, warnings)
