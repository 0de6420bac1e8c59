"""The speakers of a CustomVoice checkpoint are the presets of its server."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from support.servers.uploads import conditioned, recording

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.voices.presets import Preset

SPEAKERS = ["aiden", "dylan", "eric", "ono_anna", "ryan", "serena", "sohee", "uncle_fu", "vivian"]
SPEAKER = pb.VOICE_KIND_SPEAKER
ANNA = Preset(name="anna", kind="prompt", recording="anna.wav", transcript="Hi there. ")


async def handles(served: Any, **request: Any) -> list[pb.VoiceHandle]:
    return list((await served.stub.ListVoices(pb.ListVoicesRequest(**request))).handles)


async def spoken(served: Any, config: pb.GenerateConfig) -> tuple[str, str]:
    """The speaker that the engine is asked for, and the voice of the header."""
    chunks = await served.generate(config, "Hello.")
    conditioning = served.pool.requests[-1].conditioning
    assert conditioning.prompt is None and conditioning.reference is None
    return conditioning.speaker, chunks[0].header.voice


async def fails(call: Any, status: str, said: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert (caught.value.code().name, said in str(caught.value.details())) == (status, True), caught.value.details()


async def test_speakers_are_listed_as_presets(serve_variant):
    async with serve_variant("custom06") as served:
        info = await served.stub.GetModelInfo(pb.GetModelInfoRequest())
        assert (info.presets, info.default_voice) == (SPEAKERS, "aiden")
        listed = await handles(served)
        assert [handle.display_name for handle in listed] == SPEAKERS
        assert listed == await handles(served, kind=SPEAKER) and not await handles(served, kind=pb.VOICE_KIND_PROMPT)
        for handle in listed:
            assert handle.kind == SPEAKER and handle.id.startswith("spk_")
            assert handle.model_fingerprint == info.model_fingerprint
            assert not (handle.transcript or handle.HasField("prompt_duration") or handle.HasField("expire_time"))
        assert len({handle.id for handle in listed}) == len(SPEAKERS)
        assert not list(served.directory.rglob("*.*")), "a speaker is in no store"
        first = await handles(served, page_size=4)
        page = await served.stub.ListVoices(pb.ListVoicesRequest(page_size=4))
        assert first == listed[:4] and await handles(served, page_token=page.next_page_token) == listed[4:]


async def test_a_speaker_is_named_in_any_case_or_by_its_id(serve_variant):
    async with serve_variant("custom17") as served:
        (eric,) = [handle for handle in await handles(served) if handle.display_name == "eric"]
        for config in (
            conditioned(voice="eric"),
            conditioned(voice="Eric"),
            conditioned(voice=eric.id),
            conditioned(preset="eric"),
        ):
            assert await spoken(served, config) == ("eric", "eric")
        for name in ("eric", "ERIC", eric.id):
            assert (await served.stub.GetVoice(pb.GetVoiceRequest(id=name))).handle == eric


async def test_an_unknown_speaker_is_not_found_with_the_nearest_name(serve_variant):
    async with serve_variant("custom17") as served:
        await fails(served.generate(conditioned(preset="Vivien"), "Hi."), "NOT_FOUND", "did you mean 'vivian'?")
        await fails(served.generate(conditioned(voice="vivien"), "Hi."), "NOT_FOUND", "did you mean 'vivian'?")
        await fails(served.stub.GetVoice(pb.GetVoiceRequest(id="spk_" + "a" * 32)), "NOT_FOUND", "there is no voice")
        assert not served.pool.requests


async def test_a_speaker_of_another_model_is_refused_with_that_model(serve_variant):
    async with serve_variant("base06", others=("custom06", "custom17")) as served:
        base, small, large = (one.name for one in (await served.stub.ListModels(pb.ListModelsRequest())).models)
        for model in (small, large):
            (eric,) = [one for one in await handles(served, model=model) if one.display_name == "eric"]
            said = f"voice 'eric' is a preset of the model {model!r} and this request is for {base!r}"
            await fails(served.generate(conditioned(voice=eric.id), "Hi."), "FAILED_PRECONDITION", said)
            assert (await served.stub.GetVoice(pb.GetVoiceRequest(id=eric.id))).handle == eric
        said = f"is a preset of the model {small!r}"
        await fails(served.generate(conditioned(preset="eric"), "Hi."), "FAILED_PRECONDITION", said)
        await fails(served.generate(conditioned(voice="Eric"), "Hi."), "FAILED_PRECONDITION", said)


@pytest.mark.parametrize(
    ("setting", "default"), [("auto", "aiden"), ("none", "aiden"), ("vivian", "vivian")], ids=lambda name: name
)
async def test_the_default_speaker_is_that_of_the_setting_or_the_first_by_name(serve_variant, setting, default):
    styled = pb.GenerateConfig(turn=pb.TurnConfig(style="calm"))
    async with serve_variant("custom17", default_voice=setting) as served:
        info = await served.stub.GetModelInfo(pb.GetModelInfoRequest())
        assert info.default_voice == ("" if setting == "none" else default)
        for config in (pb.GenerateConfig(), styled):
            assert await spoken(served, config) == (default, default)
        assert served.pool.requests[-1].style == "calm"
        assert await spoken(served, conditioned(no_voice=True)) == ("aiden", "aiden")


async def test_a_style_keeps_the_speaker_of_the_stream(serve_variant):
    async with serve_variant("custom17") as served:
        angry, german, end = pb.TurnConfig(style="angry"), pb.TurnConfig(language="de"), pb.Flush(end_turn=True)
        await served.generate(conditioned(voice="sohee"), "One.", end, angry, "Two.", end, german, "Drei.")
        asked = [(one.conditioning.speaker, one.style, one.language) for one in served.pool.requests]
    assert asked == [("sohee", "", ""), ("sohee", "angry", ""), ("sohee", "", "de")]


async def test_a_speaker_is_neither_changed_nor_deleted(serve_variant):
    async with serve_variant("custom06") as served:
        said = "is the preset 'eric' of the model and cannot be"
        await fails(served.stub.DeleteVoice(pb.DeleteVoiceRequest(id="eric")), "FAILED_PRECONDITION", said)
        change = pb.UpdateVoiceRequest(id="eric", display_name="mine")
        await fails(served.stub.UpdateVoice(change), "FAILED_PRECONDITION", said)


async def test_a_folder_of_presets_stops_the_start_of_a_model_with_speakers(serve_variant):
    said = r"lists presets, and the voices of .* are built in: aiden, dylan, .*; remove the folder presets"
    with pytest.raises(StartupError, match=said):
        async with serve_variant("custom06", presets=[(ANNA, recording())]):
            pass


async def test_a_folder_of_presets_stops_the_start_of_a_model_without_recordings(serve_variant):
    with pytest.raises(StartupError, match=r"anna\.wav cannot be the preset anna: a prompt needs Qwen3-TTS Base"):
        async with serve_variant("design", presets=[(ANNA, recording())]):
            pass


async def test_a_default_that_is_no_speaker_stops_the_start(serve_variant):
    with pytest.raises(StartupError, match=r"voices\.default is anna, which .*; its presets are aiden, dylan"):
        async with serve_variant("custom06", default_voice="anna"):
            pass


async def test_a_base_model_has_the_presets_of_its_folder(serve_variant):
    async with serve_variant("base06", presets=[(ANNA, recording(samples=16000))], default_voice="anna") as served:
        (anna,) = await handles(served)
        assert (anna.display_name, anna.kind, anna.transcript) == ("anna", pb.VOICE_KIND_PROMPT, "Hi there. ")
        await served.generate("Hello.")
        prompt = served.pool.requests[-1].conditioning.prompt
        assert prompt is not None and prompt.text == "Hi there. " and prompt.content["codes"].dtype.kind == "i"
