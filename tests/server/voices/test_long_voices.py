"""A voice that leaves no room for a text is refused when it is stored or sent, and not by its first stream."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from support.servers.uploads import recording, upload

from voxcpm_grpc.v1 import tts_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
PATCHES, LIMIT = 13, 60  # of a recording of 4000 samples
FITS, TOO_LONG = "x" * (LIMIT - PATCHES - 2), "x" * (LIMIT - PATCHES - 1)


async def add(served: Any, transcript: str) -> None:
    messages = upload(pb.AddPromptRequest, pb.AddPromptConfig(transcript=transcript), (0, recording()))
    async for _ in served.stub.AddPrompt(messages):
        pass


async def test_an_upload_is_refused_with_its_figures_and_stores_nothing(serve_front, fake, details_of):
    async with serve_front(fake(max_positions=LIMIT)) as served:
        with pytest.raises(grpc.aio.AioRpcError, match="need 61 positions and the engine has 60") as raised:
            await add(served, TOO_LONG)
        assert raised.value.code() is INVALID
        assert details_of(raised.value).field == "audio"
        assert not list(served.directory.iterdir())
        await add(served, FITS)


async def test_the_members_of_a_hifi_voice_are_counted_together(serve_front, fake):
    async with serve_front(fake(max_positions=LIMIT)) as served:
        prompt = pb.UploadedPrompt(transcript=FITS)
        config = pb.AddHifiConfig(uploaded_prompt=prompt, same_as_prompt=pb.SameAsPrompt())
        with pytest.raises(grpc.aio.AioRpcError, match=f"need {LIMIT + PATCHES} positions"):
            async for _ in served.stub.AddHifi(upload(pb.AddHifiRequest, config, (1, recording()))):
                pass
        assert not list(served.directory.iterdir())


@pytest.mark.parametrize("inline", ["audio", "latents"])
async def test_an_inline_prompt_is_refused_before_its_text_arrives(serve_front, fake, details_of, inline):
    sources: dict[str, Any] = {
        "audio": {"audio": pb.EncodedAudio(data=recording())},
        "latents": {"latents": pb.Latents(data=bytes(4 * 4 * 8 * PATCHES), feat_dim=8)},
    }
    async with serve_front(fake(max_positions=LIMIT)) as served:
        for transcript in (FITS, TOO_LONG):
            prompt = pb.InlinePrompt(transcript=transcript, **sources[inline])
            config = pb.GenerateConfig(conditioning=pb.Conditioning(inline_prompt=prompt))
            if transcript is FITS:
                assert (await served.generate(config))[-1].HasField("summary")
                continue
            with pytest.raises(grpc.aio.AioRpcError, match="need 61 positions") as raised:
                await served.generate(config)
            assert raised.value.code() is INVALID
            assert details_of(raised.value).field.startswith(f"config.conditioning.inline_prompt.{inline}")
