"""A server checks requests by the options and abilities that its model tells it, whatever the family of the model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import grpc
import pytest
from support.servers.uploads import PROMPT, add_prompt, chunks_of, conditioned, recording, upload

from voxcpm_grpc import __version__
from voxcpm_grpc.abilities import Abilities, Ends, LatentShape, Option
from voxcpm_grpc.audio import SAMPLE_RATES
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.wire import replies

WARMTH = Option(name="temperature", default=0.5, low=0.25, high=2, rule="it must be from 0.25 to 2")


@pytest.fixture
def other(fake):
    """A pool of a model with one option, which speaks with recordings and styles, also at once."""
    pool = fake()
    pool.info = replace(
        pool.info,
        options=(WARMTH,),
        ends=Ends(min_steps=3, steps_per_token=12.0, max_silent_steps=25),
        abilities=Abilities(
            reference="{model} takes no reference; use a prompt",
            hifi="{model} takes no hifi voice; use a prompt",
            no_voice="{model} needs a voice; use a prompt",
            latents="{model} has no latents; send a recording",
            lora="{model} takes no LoRA adapter; leave it out",
        ),
        latents=None,
    )
    return pool


@pytest.fixture
async def served(serve_front, other):
    async with serve_front(other) as front:
        yield front


async def refused(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code().name, str(caught.value.details())


async def test_options_of_other_models_are_refused_with_those_there_are(served):
    for sampling in (pb.Sampling(cfg_value=1.0), pb.Sampling(inference_timesteps=4)):
        ((field, _),) = sampling.ListFields()
        name, turn = field.name, pb.TurnConfig(sampling=sampling)
        code, text = await refused(served.generate(pb.GenerateConfig(turn=turn), "Hello."))
        assert (code, text) == (
            "FAILED_PRECONDITION",
            f"fake, the model of this server, has no {name}; its sampling options are temperature",
        )
    low = pb.TurnConfig(sampling=pb.Sampling(temperature=0.125))
    assert await refused(served.generate(pb.GenerateConfig(turn=low), "Hello.")) == (
        "INVALID_ARGUMENT",
        "temperature is 0.125; it must be from 0.25 to 2",
    )
    assert not served.pool.requests


async def test_speech_has_the_defaults_of_the_model(served):
    handle = await add_prompt(served)
    await served.generate(conditioned(voice=handle.id), "Hello.")
    sampling = served.pool.requests[-1].sampling
    assert (sampling.temperature, sampling.cfg_value, sampling.inference_timesteps) == (0.5, None, None)
    assert (sampling.min_steps, sampling.steps_per_token, sampling.max_silent_steps) == (3, 12.0, 25)


async def test_a_style_goes_with_a_prompt_where_the_model_can_combine_them(served):
    handle = await add_prompt(served)
    config = conditioned(voice=handle.id)
    config.turn.style = "calm"
    await served.generate(config, "One. ", "Two.")
    assert [request.style for request in served.pool.requests] == ["calm", "calm"]
    assert all(request.conditioning.prompt for request in served.pool.requests)


async def test_what_the_model_cannot_do_is_refused_with_its_sentence(served):
    no_voice = await refused(served.generate("Hello."))
    assert no_voice == ("FAILED_PRECONDITION", "fake needs a voice; use a prompt")
    latents = pb.InlinePrompt(latents=pb.Latents(data=bytes(128), feat_dim=8), transcript="Hi. ")
    assert (await refused(served.generate(conditioned(inline_prompt=latents), "Hello.")))[1].startswith(
        "fake has no lat"
    )
    messages = upload(pb.EncodeLatentsRequest, pb.EncodeLatentsConfig(role=PROMPT), (PROMPT, recording()))
    assert (await refused(served.stub.EncodeLatents(messages)))[1].startswith("fake has no latents")
    adapted = pb.GenerateConfig(turn=pb.TurnConfig(lora="warm"))
    assert (await refused(served.generate(adapted, "Hello.")))[1].startswith("fake takes no LoRA adapter")
    assert await refused(add_prompt(served, options=pb.VoiceOptions(lora="warm"))) == (
        "FAILED_PRECONDITION",
        "fake takes no LoRA adapter; leave it out",
    )
    hifi = pb.AddHifiConfig(uploaded_prompt=pb.UploadedPrompt(transcript="Hi. "), same_as_prompt=pb.SameAsPrompt())
    added = chunks_of(served.stub.AddHifi, upload(pb.AddHifiRequest, hifi, (0, recording())))
    assert (await refused(added))[1] == "fake takes no hifi voice; use a prompt"
    assert not served.pool.requests


async def test_model_info_has_the_options_and_the_kinds_of_voices_of_the_model(served):
    info = await served.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert info.default_sampling == pb.Sampling(temperature=0.5, min_steps=3)
    assert not info.inference_timesteps and not info.feat_dim and not info.patch_size
    assert (info.voice_kinds, info.no_styles) == ([pb.VOICE_KIND_PROMPT], False)
    assert info.sampling_fields == ["temperature", "seed", "min_steps", "max_steps"]
    assert info.default_max_silence.ToMilliseconds() == 500  # 25 steps


def test_model_info_of_voxcpm_has_the_bytes_that_it_always_had_and_the_names_of_its_options(fake):
    limits = LimitSettings()
    abilities = Abilities(text_streaming="as a whole")
    info = replace(fake().info, latents=LatentShape(frames=4, dim=8), abilities=abilities)
    reply = replies.model_info(info, limits, ["anna"], "anna", ["warm"])
    assert reply.SerializeToString(deterministic=True) == pb.GetModelInfoResponse(
        model="fake",
        model_fingerprint="f" * 40,
        input_sample_rate_hz=16000,
        output_sample_rate_hz=48000,
        feat_dim=8,
        patch_size=4,
        samples_per_step=960,
        output_encodings=reply.output_encodings,
        output_sample_rates_hz=SAMPLE_RATES,
        limits=reply.limits,
        default_sampling=pb.Sampling(cfg_value=2.0, temperature=1.0, inference_timesteps=10, min_steps=2),
        server_version=__version__,
        architecture="fake",
        inference_timesteps=(4, 6, 10),
        max_model_len=4096,
        max_slots=4,
        device="cpu",
        dtype="float32",
        codec_dtype="float32",
        presets=["anna"],
        default_voice="anna",
        voice_kinds=[pb.VOICE_KIND_PROMPT, pb.VOICE_KIND_REFERENCE, pb.VOICE_KIND_HIFI],
        no_styles=False,
        loras=["warm"],
        sampling_fields=["cfg_value", "inference_timesteps", "temperature", "seed", "min_steps", "max_steps"],
    ).SerializeToString(deterministic=True)


async def test_segments_of_a_model_without_prompts_speak_for_themselves(serve_front, fake):
    """Speech that came before would be refused as a prompt, and as a reference."""
    pool = fake()
    pool.info = replace(
        pool.info, abilities=Abilities(prompt="no prompt", reference="no reference", hifi="no hifi voice")
    )
    async with serve_front(pool) as front:
        await front.generate("One. ", "Two. ", "Three.")
    assert len(pool.requests) > 1
    assert all(not (one.conditioning.prompt or one.conditioning.reference) for one in pool.requests)
    assert not any(request.keep_speech for request in pool.requests)
