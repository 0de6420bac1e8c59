"""Limits of the settings refuse large requests before they cost memory or time of the event loop."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
MANUAL = pb.GenerateConfig(segmentation=pb.Segmentation(mode=pb.SEGMENTATION_MODE_MANUAL))


def with_prompt(transcript: str) -> pb.GenerateConfig:
    prompt = pb.InlinePrompt(transcript=transcript, audio=pb.EncodedAudio(data=b"x"))
    return pb.GenerateConfig(conditioning=pb.Conditioning(inline_prompt=prompt))


def with_reference(**source: Any) -> pb.GenerateConfig:
    return pb.GenerateConfig(conditioning=pb.Conditioning(inline_reference=pb.InlineReference(**source)))


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([pb.GenerateConfig(turn=pb.TurnConfig(style="( " * 1_000_000))], "config.turn.style"),
        ([with_prompt("\x01" * 2000 + "a")], "config.conditioning.inline_prompt.transcript"),
        (["Hello.", pb.Flush(tag="x" * 129)], "flush.tag"),
        (["Hello.", pb.Interrupt(tag="x" * 129)], "interrupt.tag"),
    ],
)
async def test_long_fields_are_refused(served, details_of, messages, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(*messages)
    assert caught.value.code() is INVALID
    assert details_of(caught.value).field == field
    await served.idle()


async def test_unanswered_flushes_are_bounded(serve_front, fake):
    async with serve_front(fake(step_seconds=NEVER_SECONDS)) as served:
        with pytest.raises(grpc.aio.AioRpcError, match="1000 flushes") as caught:
            await served.generate(MANUAL, "x" * 300, *[pb.Flush(tag="x" * 128)] * 1100)
        assert caught.value.code() is INVALID
        await served.idle()


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.AddReferenceRequest(commit=pb.UploadCommit(digests=[pb.UploadDigest()] * 3)), "commit.digests"),
        (
            pb.AddReferenceRequest(
                config=pb.AddReferenceConfig(options=pb.VoiceOptions(labels={str(n): "" for n in range(33)}))
            ),
            "config.options.labels",
        ),
    ],
)
async def test_uploads_are_bounded(served, details_of, message, field):
    first: list[Any] = [] if message.HasField("config") else [pb.AddReferenceRequest(config=pb.AddReferenceConfig())]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in served.stub.AddReference(iter([*first, message])):
            pass
    assert caught.value.code() is INVALID
    assert details_of(caught.value).field == field


LATENTS = pb.Latents(data=bytes(4 * 32 * 100), feat_dim=8)  # 100 patches of 20 ms
LONG = "Five words are in here. "


@pytest.mark.parametrize(
    ("limits", "messages", "field"),
    [
        ({"max_text_chars": 30}, ["x" * 31], "text"),
        ({"max_style_chars": 4}, [pb.GenerateConfig(turn=pb.TurnConfig(style="quiet"))], "config.turn.style"),
        ({"max_transcript_chars": 3}, [with_prompt("long")], "config.conditioning.inline_prompt.transcript"),
        (
            {"max_inline_audio_bytes": 3},
            [with_reference(audio=pb.EncodedAudio(data=bytes(4)))],
            "config.conditioning.inline_reference.audio.data",
        ),
        (
            {"max_reference_seconds": 1.9},
            [with_reference(latents=LATENTS)],
            "config.conditioning.inline_reference.latents",
        ),
    ],
)
async def test_each_limit_is_the_setting(serve_front, details_of, limits, messages, field):
    async with serve_front(**limits) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(*messages)
        assert caught.value.code() is INVALID
        assert details_of(caught.value).field == field


async def test_limits_of_the_server_apply_to_larger_values_of_callers(serve_front, fake):
    pool = fake()
    eager = pb.GenerateConfig(max_queue_time=Duration(seconds=600), segmentation=pb.Segmentation(max_chars=300))
    async with serve_front(pool, max_segment_chars=10) as served:
        await served.generate(eager, LONG)
        assert max(len(request.text) for request in pool.requests) <= 10
    for _ in range(4):
        await pool.slots.acquire()
    async with serve_front(pool, max_queue_seconds=0.1) as served:
        with pytest.raises(grpc.aio.AioRpcError, match=r"within 0\.1 s") as caught:
            await served.generate(eager, LONG, timeout=HANG_SECONDS)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_the_lead_over_a_client_that_does_not_read_is_limited_by_the_server(serve_front, fake):
    pool, windows = fake(), list[int]()
    generate = pool.generate
    pool.generate = lambda request, *, window, **options: (
        windows.append(window) or generate(request, window=window, **options)
    )
    async with serve_front(pool, max_lead_seconds=0.2) as served:
        far = pb.GenerateConfig(pacing=pb.Pacing(max_lead=Duration(seconds=60)))
        chunks = await served.generate(far, LONG)
        assert sum(chunk.sample_count for chunk in chunks) == 960 * (len(LONG) - 1)
        assert windows == [10]  # of 20 ms each
