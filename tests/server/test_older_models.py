"""Models before VoxCPM2 take no reference, no hifi voice and no style. Requests for them are refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest
from support.servers.sessions import session
from support.servers.uploads import PROMPT, REFERENCE, add_prompt, chunks_of, conditioned, recording, upload

from voxcpm_grpc.errors import StartupError, TooLong
from voxcpm_grpc.models.voxcpm.config.abilities import abilities
from voxcpm_grpc.request import Sampling
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.values.inputs import Text
from voxcpm_server.voices.presets import Preset

NO_REFERENCE = (
    "references and hifi voices need VoxCPM2, and this server's model is fake; use a prompt, which is a recording with "
    "its transcript"
)
NO_STYLE = "a style needs VoxCPM2, and this server's model is fake; send the text without a style"
LATENTS = pb.Latents(data=np.zeros((4, 8), "<f4").tobytes(), feat_dim=8)
STYLED = pb.TurnConfig(style="calm")


@pytest.fixture
def older(fake):
    """A pool of a model that takes neither references nor styles."""
    pool = fake()
    pool.info = replace(pool.info, name="fake", abilities=abilities(references=False, styles=False))
    return pool


@pytest.fixture
async def served(serve_front, older):
    async with serve_front(older) as front:
        yield front


async def refused(call: Any, text: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, text)


def uploaded(served: Any, kind: str, config: Any) -> Any:
    method, message = getattr(served.stub, kind), getattr(pb, f"{kind}Request")
    return chunks_of(method, upload(message, config, (0, recording())))


@pytest.mark.parametrize(
    "fields",
    [
        {"reference_id": "ref_" + "a" * 32},
        {"inline_reference": pb.InlineReference(latents=LATENTS)},
        {"hifi_id": "hifi_" + "a" * 32},
        {"prompt_id": "prm_" + "a" * 32, "reference_id": "ref_" + "a" * 32},
    ],
    ids=lambda fields: "+".join(fields),
)
async def test_a_stream_with_a_reference_is_refused_before_it_is_looked_for(served, fields):
    await refused(served.generate(conditioned(**fields), "Hello."), NO_REFERENCE)
    assert not served.pool.requests


async def test_references_and_hifi_voices_are_not_stored(served):
    for kind, config in (
        ("AddReference", pb.AddReferenceConfig()),
        (
            "AddHifi",
            pb.AddHifiConfig(uploaded_prompt=pb.UploadedPrompt(transcript="Hi. "), same_as_prompt=pb.SameAsPrompt()),
        ),
    ):
        await refused(uploaded(served, kind, config), NO_REFERENCE)
    messages = upload(pb.EncodeLatentsRequest, pb.EncodeLatentsConfig(role=REFERENCE), (REFERENCE, recording()))
    await refused(served.stub.EncodeLatents(messages), NO_REFERENCE)
    assert served.pool.encoded == 0
    assert not (await served.stub.ListVoices(pb.ListVoicesRequest())).handles


async def test_a_style_is_refused_in_the_config_for_a_turn_and_in_a_preview(served):
    config = pb.GenerateConfig(turn=STYLED)
    await refused(served.generate(config, "Hello."), NO_STYLE)
    await refused(served.generate("Hello. ", STYLED, "More."), NO_STYLE)
    preview = pb.Preview(mode=pb.PREVIEW_MODE_SYNTHESIS, turn=STYLED)
    prompt = pb.AddPromptConfig(transcript="Hi. ", preview=preview)
    await refused(uploaded(served, "AddPrompt", prompt), NO_STYLE)
    assert (await served.generate(pb.GenerateConfig(turn=pb.TurnConfig(style="()")), "Hello."))[-1].HasField("summary")


async def test_a_language_is_refused_in_the_config_and_for_a_turn(served):
    german = pb.TurnConfig(language="de")
    text = "fake takes no language: it follows that of the text; send the text without a language"
    await refused(served.generate(pb.GenerateConfig(turn=german), "Hello."), text)
    await refused(served.generate("Hello. ", german, "More."), text)
    found = pb.GenerateConfig(turn=pb.TurnConfig(language="auto"))
    assert (await served.generate(found, "Hello."))[-1].HasField("summary")


async def test_prompts_are_stored_spoken_with_and_encoded(served):
    handle = await add_prompt(served)
    assert (await served.generate(conditioned(voice=handle.id), "Hello."))[-1].HasField("summary")
    assert served.pool.requests[-1].conditioning.prompt is not None
    messages = upload(pb.EncodeLatentsRequest, pb.EncodeLatentsConfig(role=PROMPT), (PROMPT, recording()))
    assert (await served.stub.EncodeLatents(messages)).latents.data


async def test_model_info_lists_the_kinds_of_voices_and_says_if_styles_are_taken(served, serve_front):
    info = await served.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (info.voice_kinds, info.no_styles) == ([pb.VOICE_KIND_PROMPT], True)
    async with serve_front() as newer:
        info = await newer.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert info.voice_kinds == [pb.VOICE_KIND_PROMPT, pb.VOICE_KIND_REFERENCE, pb.VOICE_KIND_HIFI]
    assert not info.no_styles


async def test_a_preset_that_is_no_prompt_stops_the_start(serve_front, older):
    preset = Preset(name="otto", kind="reference", recording="otto.wav")
    with pytest.raises(StartupError, match=r"otto\.wav cannot be the preset otto: references and hifi voices need"):
        async with serve_front(older, presets=[(preset, recording())]):
            pass


# ---- the voice of a stream, which the model chooses


def prompts(pool: Any) -> list[str | None]:
    """The text of the prompt of each request. None of them has a reference."""
    assert all(request.conditioning.reference is None for request in pool.requests)
    return [request.conditioning.prompt and request.conditioning.prompt.text for request in pool.requests]


def test_speech_that_is_cut_off_does_not_decide_the_voice_and_the_next_one_does(older):
    """Its text does not match, and there is no reference to keep its timbre."""
    session(older, [Text("A long sentence. "), Text("Go. "), Text("Yes.")], sampling=Sampling(max_steps=6))
    assert prompts(older) == [None, None, "Go."]


def test_speech_that_is_longer_than_the_carried_time_remains_the_prompt(older):
    older.char_steps = 40  # each step stands for 160 ms of latents
    session(older, [Text("One long sentence. "), Text("Two. "), Text("Three.")])
    assert prompts(older)[1:] == ["One long sentence.", "One long sentence. Two."]


def test_a_stream_goes_on_without_its_own_prompt_when_the_engine_has_no_room_for_it(older):
    older.max_positions = 60
    session(older, [Text("A sentence of some length. "), Text("Another one of that length.")])
    assert prompts(older)[-1] is None
    with pytest.raises(TooLong):
        session(older, [Text("x" * 80)])
