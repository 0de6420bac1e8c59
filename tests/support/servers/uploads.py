"""Recordings, the messages of uploads, and their replies."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb

PROMPT, REFERENCE = pb.AUDIO_ROLE_PROMPT, pb.AUDIO_ROLE_REFERENCE


def recording(seed: int = 0, samples: int = 4000) -> bytes:
    return wav_bytes(np.random.default_rng(seed).uniform(-0.5, 0.5, samples).astype(np.float32), 16000)


def tone() -> bytes:
    """A second of a noisy tone. It is different every time, so no stored voice of another test has its id."""
    seconds = np.arange(16000) / 16000
    noise = np.random.default_rng().uniform(-0.05, 0.05, 16000)
    return wav_bytes((0.3 * np.sin(2 * np.pi * 220 * seconds) + noise).astype(np.float32), 16000)


def upload(kind: Any, config: Any, *recordings: tuple[int, bytes], sha: bool = True, size: int = 1000) -> Iterator[Any]:
    """The messages of an upload: config, parts and commit."""
    yield kind(config=config)
    for role, data in recordings:
        for at in range(0, len(data), size):
            yield kind(audio=pb.AudioPart(data=data[at : at + size], offset_bytes=at, role=cast(pb.AudioRole, role)))
    digests = [
        pb.UploadDigest(
            role=cast(pb.AudioRole, role),
            total_bytes=len(data),
            sha256=hashlib.sha256(data).digest() if sha else b"",
        )
        for role, data in recordings
    ]
    yield kind(commit=pb.UploadCommit(digests=digests))


async def chunks_of(method: Any, messages: Any) -> list[pb.AudioChunk]:
    return [chunk async for chunk in method(iter(list(messages)))]


async def add_prompt(served: Any, seed: int = 0, transcript: str = "Hi there.", **config: Any) -> pb.VoiceHandle:
    messages = upload(pb.AddPromptRequest, pb.AddPromptConfig(transcript=transcript, **config), (0, recording(seed)))
    return (await chunks_of(served.stub.AddPrompt, messages))[0].handle


async def add_reference(served: Any, seed: int = 1, **config: Any) -> pb.VoiceHandle:
    messages = upload(pb.AddReferenceRequest, pb.AddReferenceConfig(**config), (0, recording(seed)))
    return (await chunks_of(served.stub.AddReference, messages))[0].handle


async def add_hifi(served: Any, *recordings: tuple[int, bytes], **config: Any) -> list[pb.AudioChunk]:
    return await chunks_of(served.stub.AddHifi, upload(pb.AddHifiRequest, pb.AddHifiConfig(**config), *recordings))


def conditioned(**fields: Any) -> pb.GenerateConfig:
    return pb.GenerateConfig(conditioning=pb.Conditioning(**fields))
