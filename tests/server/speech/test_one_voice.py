"""A stream has one voice: the caller's, the server's default, or that of its first speech."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import numpy as np
import pytest
from support.clients.grpc_types import EOF
from support.engines.voice_parts import latents_of
from support.servers.uploads import add_prompt, add_reference, conditioned, recording
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.request import Conditioning, VoicePart
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.voices.presets import Preset, read

MODES = [pb.CONTINUITY_MODE_CARRY, pb.CONTINUITY_MODE_INDEPENDENT]
STEP_SECONDS = 960 / 48000  # the fake engine makes one step for each character
ANNA = Preset(name="anna", kind="prompt", recording="anna.wav", transcript="Hi there. ")
OTTO = Preset(name="otto", kind="reference", recording="otto.wav", default=True)
PRESETS = [(ANNA, recording(0)), (OTTO, recording(1))]


def config(continuity: Any = pb.CONTINUITY_MODE_CARRY, max_steps: int | None = None, **fields: Any) -> Any:
    return pb.GenerateConfig(
        segmentation=pb.Segmentation(continuity=continuity),
        turn=pb.TurnConfig(sampling=pb.Sampling(seed=7, max_steps=max_steps), style=fields.pop("style", "")),
        conditioning=pb.Conditioning(**fields),
    )


def voices(served: Any) -> list[Conditioning]:
    return [request.conditioning for request in served.pool.requests]


def prompt_of(voice: Conditioning) -> VoicePart:
    assert voice.prompt is not None
    return voice.prompt


def reference_of(voice: Conditioning) -> np.ndarray:
    return latents_of(voice.reference)


async def read_until(call: Any, wanted: Callable[[pb.AudioChunk], bool]) -> pb.AudioChunk:
    async with asyncio.timeout(HANG_SECONDS):
        while (chunk := await call.read()) is not EOF:
            if wanted(chunk):
                return chunk
    raise AssertionError("the stream ended")


async def interrupted(
    served: Any, first: pb.GenerateConfig, text: str, received: Callable[[pb.AudioChunk], bool], then: str
) -> None:
    """Speak `text`, interrupt the stream at the first chunk that is `received`, and speak `then` in the next turn."""
    call = served.stub.Generate()
    await call.write(pb.GenerateRequest(config=first))
    await call.write(pb.GenerateRequest(text=text))
    await read_until(call, received)
    await call.write(pb.GenerateRequest(interrupt=pb.Interrupt()))
    await read_until(call, lambda chunk: chunk.HasField("interrupted"))
    served.pool.release()
    await call.write(pb.GenerateRequest(text=then))
    await call.done_writing()
    await read_until(call, lambda chunk: chunk.HasField("summary"))


@pytest.mark.parametrize("continuity", MODES)
@pytest.mark.parametrize("style", ["", "calm"])
async def test_the_first_speech_is_the_prompt_of_all_later_speech(served, continuity, style):
    await served.generate(
        config(continuity, style=style), "One. Two. ", pb.Flush(end_turn=True), "Three. ", pb.Flush(), "三。四。"
    )
    first, *later = voices(served)
    assert first == Conditioning()
    for voice in later:
        assert voice.prompt is not None and voice.prompt.text.startswith("One.")
        assert (latents_of(voice.prompt)[0] == len("One.")).all()
        assert voice.reference is None
    if continuity == pb.CONTINUITY_MODE_INDEPENDENT:
        assert {prompt_of(voice).text for voice in later} == {"One."}
    assert [request.text for request in served.pool.requests] == ["One.", " Two.", " Three.", " 三。", "四。"]
    assert [request.style for request in served.pool.requests] == [style, "", "", "", ""]


@pytest.mark.parametrize("continuity", MODES)
async def test_the_first_speech_stays_the_prompt_beyond_the_carry_limit(serve_front, continuity):
    async with serve_front(max_carry_seconds=8 * STEP_SECONDS) as served:
        await served.generate(config(continuity), "One. Two. Three. Four. Five.")
        assert all(prompt_of(voice).text.startswith("One.") for voice in voices(served)[1:])


@pytest.mark.parametrize("continuity", MODES)
async def test_an_interrupt_does_not_change_the_voice(serve_front, fake, continuity):
    async with serve_front(fake(hold_after=40)) as served:
        text = "First one. " + "Second one is long. " * 5
        await interrupted(
            served, config(continuity), text, lambda chunk: chunk.segment_index == 1 and chunk.sample_count > 0, "Anew."
        )
        assert prompt_of(voices(served)[-1]).text == "First one."
        assert served.pool.encoded == 0


@pytest.mark.parametrize("continuity", MODES)
async def test_the_timbre_of_interrupted_first_speech_stays(serve_front, fake, continuity):
    async with serve_front(fake(hold_after=60)) as served:
        await interrupted(
            served,
            config(continuity),
            "x" * 390 + ". Next",
            lambda chunk: chunk.offset_samples + chunk.sample_count > 50_000,  # more than a second
            "Anew. And on.",
        )
        assert served.pool.encoded == 1
        for voice in voices(served)[-2:]:
            assert len(reference_of(voice)) > 50_000 / 3 / served.pool.info.input_samples_per_step
        assert voices(served)[-2].prompt is None


async def test_a_second_interrupt_does_not_lose_the_timbre(serve_front, fake):
    async with serve_front(fake(hold_after=60)) as served:
        call = served.stub.Generate()
        await call.write(pb.GenerateRequest(config=config()))
        await call.write(pb.GenerateRequest(text="x" * 390 + ". Next"))
        await read_until(call, lambda chunk: chunk.offset_samples + chunk.sample_count > 50_000)
        for _ in range(3):
            await call.write(pb.GenerateRequest(interrupt=pb.Interrupt()))
            await read_until(call, lambda chunk: chunk.HasField("interrupted"))
            await until(lambda: served.pool.encoded)
        served.pool.release()
        await call.write(pb.GenerateRequest(text="Anew."))
        await call.done_writing()
        await read_until(call, lambda chunk: chunk.HasField("summary"))
        assert voices(served)[-1].reference is not None


async def test_short_interrupted_speech_does_not_decide_the_voice(serve_front, fake):
    async with serve_front(fake(hold_after=5)) as served:
        text = "First one. Next"  # 0.2 s in all
        await interrupted(served, config(), text, lambda chunk: chunk.sample_count > 0, "Anew. And on.")
        assert served.pool.encoded == 0
        assert voices(served)[:2] == [Conditioning(), Conditioning()]
        assert prompt_of(voices(served)[2]).text == "Anew."


@pytest.mark.parametrize("continuity", MODES)
async def test_the_timbre_of_first_speech_that_a_cap_cut_off_stays(served, continuity):
    await served.generate(config(continuity, max_steps=8), "A long sentence. Short.  Done.")
    first, second, third = voices(served)
    assert first == Conditioning()
    assert second.prompt is None
    for voice in (second, third):
        assert (reference_of(voice) == len("A long sentence.")).all() and len(reference_of(voice)) == 8


@pytest.mark.parametrize("continuity", MODES)
async def test_the_voice_of_the_caller_stays(served, continuity):
    reference = await add_reference(served)
    await served.generate(config(continuity, reference_id=reference.id), "One. Two. Three.")
    for voice in voices(served):
        np.testing.assert_array_equal(reference_of(voice), reference_of(voices(served)[0]))
    carried = [voice.prompt and voice.prompt.text for voice in voices(served)]
    assert carried == ([None, "One.", "One. Two."] if continuity == pb.CONTINUITY_MODE_CARRY else [None] * 3)


# ---- the default voice


async def name_of(served: Any, **fields: Any) -> str:
    chunks = await served.generate(config(**fields), "Hello.")
    return chunks[0].header.voice


async def test_the_default_voice_is_used_without_a_voice_and_a_style(serve_front):
    async with serve_front(presets=PRESETS) as served:
        assert (await served.stub.GetModelInfo(pb.GetModelInfoRequest())).default_voice == "otto"
        assert await name_of(served) == "otto"
        assert (await served.generate("Hello."))[0].header.voice == "otto"
        by_default, without_config = voices(served)
        assert await name_of(served, preset="otto") == "otto"
        for voice in (by_default, without_config):
            np.testing.assert_array_equal(reference_of(voice), reference_of(voices(served)[-1]))


async def test_a_voice_or_a_style_replaces_the_default_voice(serve_front):
    async with serve_front(presets=PRESETS) as served:
        assert await name_of(served, preset="anna") == "anna"
        for asked in ({"style": "calm"}, {"no_voice": True}, {"no_voice": True, "style": "calm"}):
            assert await name_of(served, **asked) == ""
            assert voices(served)[-1] == Conditioning()
        prompt, reference = await add_prompt(served, 5), await add_reference(served, 6)
        assert await name_of(served, prompt_id=prompt.id) == prompt.id
        assert await name_of(served, prompt_id=prompt.id, reference_id=reference.id) == f"{prompt.id}+{reference.id}"
        inline = pb.InlineReference(audio=pb.EncodedAudio(data=recording(9)))
        assert await name_of(served, inline_reference=inline) == "inline"
        assert await name_of(served, inline_reference=inline, prompt_id=prompt.id) == f"{prompt.id}+inline"


@pytest.mark.parametrize(("default", "expected"), [("auto", "otto"), ("none", ""), ("anna", "anna")])
async def test_the_operator_may_choose_the_default_voice(serve_front, default, expected):
    async with serve_front(presets=PRESETS, default_voice=default) as served:
        assert (await served.stub.GetModelInfo(pb.GetModelInfoRequest())).default_voice == expected
        assert await name_of(served) == expected


async def test_a_missing_default_voice_is_an_error_at_the_start(serve_front):
    for presets, there in ((PRESETS, "its presets are anna, otto"), ((), "it has no presets here")):
        with pytest.raises(StartupError, match=f"voices.default is emil, .*{there}; set one of them, auto or none"):
            async with serve_front(presets=presets, default_voice="emil"):
                pass


async def test_no_voice_excludes_voices(served, details_of):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.generate(conditioned(no_voice=True, preset="otto"), "Hello.")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(caught.value).field == "config.conditioning.no_voice"


def test_one_preset_may_be_the_default(tmp_path):
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "a.wav").write_bytes(recording())
    entry = '{"name": "%s", "kind": "reference", "recording": "a.wav", "default": true}'
    (folder / "presets.json").write_text(f"[{entry % 'anna'}, {entry % 'otto'}]")
    with pytest.raises(StartupError, match="marks anna, otto as default, and only one preset may be the default"):
        read(tmp_path)
