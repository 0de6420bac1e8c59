"""The upload budget: bytes are taken when parts arrive and returned when the upload ends in any way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np
import pytest
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.request import Role, VoicePart
from voxcpm_grpc.v1 import tts_pb2 as pb

RECORDING = wav_bytes(np.random.default_rng(0).uniform(-0.5, 0.5, 4000).astype(np.float32), 16000)  # 8,044 bytes
PROMPT = pb.AddPromptConfig(transcript="Hi.")
HIFI = pb.AddHifiConfig(uploaded_prompt=pb.UploadedPrompt(transcript="Hi."), same_as_prompt=pb.SameAsPrompt())


def upload(kind: Any, config: Any, data: bytes = RECORDING, *, end: bool = True) -> Iterator[Any]:
    """Config, parts of 1,000 bytes, and the commit unless `end` is false."""
    yield kind(config=config)
    for at in range(0, len(data), 1000):
        yield kind(audio=pb.AudioPart(data=data[at : at + 1000], offset_bytes=at))
    if end:
        yield kind(commit=pb.UploadCommit(digests=[pb.UploadDigest(total_bytes=len(data))]))


def generation(data: bytes = RECORDING) -> Iterator[pb.GenerateRequest]:
    reference = pb.InlineReference(audio=pb.EncodedAudio(data=data))
    yield pb.GenerateRequest(config=pb.GenerateConfig(conditioning=pb.Conditioning(inline_reference=reference)))
    yield pb.GenerateRequest(text="Hello.")


async def consume(call: Any) -> None:
    async for _ in call:
        pass


async def encode_latents(stub: Any) -> None:
    config = pb.EncodeLatentsConfig(role=pb.AUDIO_ROLE_REFERENCE)
    await stub.EncodeLatents(upload(pb.EncodeLatentsRequest, config))


WAYS: dict[str, Callable[[Any], Any]] = {
    "prompt": lambda stub: consume(stub.AddPrompt(upload(pb.AddPromptRequest, PROMPT))),
    "reference": lambda stub: consume(stub.AddReference(upload(pb.AddReferenceRequest, pb.AddReferenceConfig()))),
    "hifi": lambda stub: consume(stub.AddHifi(upload(pb.AddHifiRequest, HIFI))),
    "latents": encode_latents,
    "inline": lambda stub: consume(stub.Generate(generation())),
}


async def begin(served: Any, size: int) -> Any:
    """Start an upload that sends this many bytes and then pauses."""
    call, before = served.stub.AddPrompt(), served.uploads.held
    for message in upload(pb.AddPromptRequest, PROMPT, RECORDING[:size], end=False):
        await call.write(message)
    await held(served, before + size)
    return call


async def held(served: Any, size: int) -> None:
    await until(lambda: served.uploads.held == size)


@pytest.mark.parametrize("way", WAYS)
async def test_uploads_share_a_budget(serve_front, details_of, way):
    async with serve_front(max_upload_bytes_total=10_000) as served:
        await WAYS[way](served.stub)
        assert served.uploads.held == 0
        other = await begin(served, 3000)
        with pytest.raises(grpc.aio.AioRpcError, match=r"10000.*retry") as caught:
            await WAYS[way](served.stub)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(caught.value).retry_seconds > 0
        assert served.uploads.held == 3000
        other.cancel()
        await served.idle()
        assert served.uploads.held == 0
        await WAYS[way](served.stub)
        assert served.uploads.held == 0


async def test_a_recording_is_counted_until_it_is_encoded(serve_front, fake):
    pool, encoded = fake(), asyncio.Event()
    encode = pool.encode

    async def slow(waveform: np.ndarray, role: Role) -> VoicePart:
        await encoded.wait()
        return await encode(waveform, role)

    pool.encode = slow
    async with serve_front(pool) as served:
        calls = [asyncio.create_task(way(served.stub)) for way in WAYS.values()]
        await held(served, len(RECORDING) * len(WAYS))
        encoded.set()
        await asyncio.gather(*calls)
        assert served.uploads.held == 0


GAP = pb.AddPromptRequest(audio=pb.AudioPart(data=b"x", offset_bytes=9))
WRONG = pb.AddPromptRequest(commit=pb.UploadCommit(digests=[pb.UploadDigest(total_bytes=1)]))


@pytest.mark.parametrize("last", [GAP, WRONG], ids=["gap", "wrong commit"])
async def test_a_failed_upload_returns_its_bytes(served, last):
    call = await begin(served, 1000)
    await call.write(last)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call.read(), HANG_SECONDS)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    await served.idle()
    assert served.uploads.held == 0


async def test_an_upload_that_times_out_returns_its_bytes(serve_front, monkeypatch):
    seen = []

    async def sent():
        for message in upload(pb.AddPromptRequest, PROMPT, RECORDING[:1000], end=False):
            yield message
        await asyncio.sleep(NEVER_SECONDS)

    async with serve_front(upload_idle_seconds=3.0) as served:
        account = served.uploads.account

        @contextmanager
        def watched(caller: str) -> Iterator[Any]:
            with account(caller) as take:
                yield lambda size, field: (take(size, field), seen.append(served.uploads.held))

        monkeypatch.setattr(served.uploads, "account", watched)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(served.stub.AddPrompt(sent()).read(), HANG_SECONDS)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await served.idle()
        assert (seen, served.uploads.held) == ([1000], 0)


async def test_an_upload_that_can_never_fit_is_not_retryable(serve_front, details_of):
    async with serve_front(max_upload_bytes_total=5000) as served:
        for way in WAYS.values():
            with pytest.raises(grpc.aio.AioRpcError, match="5000") as caught:
                await way(served.stub)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert details_of(caught.value).retry_seconds is None
        assert served.uploads.held == 0
