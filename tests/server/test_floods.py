"""What a caller may pile up: refused before it costs memory or time of the event loop."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from voxcpm_grpc.v1 import tts_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
MANUAL = pb.GenerateConfig(segmentation=pb.Segmentation(mode=pb.SEGMENTATION_MODE_MANUAL))


def spoken_like(transcript: str) -> pb.GenerateConfig:
    prompt = pb.InlinePrompt(transcript=transcript, audio=pb.EncodedAudio(data=b"x"))
    return pb.GenerateConfig(conditioning=pb.Conditioning(inline_prompt=prompt))


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([pb.GenerateConfig(turn=pb.TurnConfig(style="( " * 1_000_000))], "config.turn.style"),
        ([spoken_like("\x01" * 2000 + "a")], "config.conditioning.inline_prompt.transcript"),
        (["Hello.", pb.Flush(tag="x" * 129)], "flush.tag"),
        (["Hello.", pb.Interrupt(tag="x" * 129)], "interrupt.tag"),
    ],
)
async def test_what_is_too_long_is_refused(served, details_of, messages, field):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(*messages)
    assert caught.value.code() is INVALID
    assert details_of(caught.value).field == field
    await served.idle()


async def test_unanswered_flushes_are_bounded(serve_front, fake):
    async with serve_front(fake(step_seconds=0.05)) as served:
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
async def test_uploads_are_bounded_too(served, details_of, message, field):
    first: list[Any] = [] if message.HasField("config") else [pb.AddReferenceRequest(config=pb.AddReferenceConfig())]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in served.stub.AddReference(iter([*first, message])):
            pass
    assert caught.value.code() is INVALID
    assert details_of(caught.value).field == field
