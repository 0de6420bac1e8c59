"""A server of each kind of Qwen3-TTS takes what its model can do, and refuses the rest with the model that can."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest
from support.clients.status_details import details_of
from support.servers.uploads import PROMPT, REFERENCE, chunks_of, conditioned, upload

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.v1 import tts_pb2 as pb

VARIANTS = ("custom06", "custom17", "base06", "base17", "design")
LANGUAGES = ["en", "zh", "de", "es", "ja", "fr", "ko", "ru", "it", "pt"]
SAMPLING = ["temperature", "top_k", "top_p", "repetition_penalty", "code_temperature", "code_top_k", "code_top_p"]
INVALID, LACKING = "INVALID_ARGUMENT", "FAILED_PRECONDITION"
SECONDS = 2.0
BASE = "needs Qwen3-TTS Base, and this server's model is"


def recording(seed: int = 0, seconds: float = SECONDS) -> bytes:
    noise = np.random.default_rng(seed).uniform(-0.5, 0.5, int(seconds * 16000))
    return wav_bytes(noise.astype(np.float32), 16000)


AUDIO = pb.EncodedAudio(data=recording())
INLINE_PROMPT = pb.InlinePrompt(audio=AUDIO, transcript="Hello world. ")
INLINE_REFERENCE = pb.InlineReference(audio=AUDIO)
LATENTS = pb.Latents(data=bytes(128), feat_dim=8)
CONFIGS: dict[str, Any] = {
    "AddPrompt": pb.AddPromptConfig(transcript="Hello world. "),
    "AddReference": pb.AddReferenceConfig(),
    "AddHifi": pb.AddHifiConfig(
        uploaded_prompt=pb.UploadedPrompt(transcript="Hello world. "), same_as_prompt=pb.SameAsPrompt()
    ),
}


def add(served: Any, method: str, data: bytes = b"", **fields: Any) -> Any:
    """All replies to an upload."""
    config = type(CONFIGS[method])(**fields)
    config.MergeFrom(CONFIGS[method])
    messages = upload(getattr(pb, f"{method}Request"), config, (0, data or recording()), size=100_000)
    return chunks_of(getattr(served.stub, method), messages)


def turn(**fields: Any) -> pb.GenerateConfig:
    return pb.GenerateConfig(turn=pb.TurnConfig(**fields))


async def refused(call: Any, status: str, said: str, field: str = "") -> None:
    """The call fails. Only invalid requests have a field at fault."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert (caught.value.code().name, said in str(caught.value.details())) == (status, True), caught.value.details()
    if field:
        assert details_of(caught.value).field == field


def voiced(variant: str, **fields: Any) -> pb.GenerateConfig:
    """A config with a voice that the variant has."""
    config = conditioned(inline_reference=INLINE_REFERENCE) if variant.startswith("base") else pb.GenerateConfig()
    config.MergeFrom(pb.GenerateConfig(**fields))
    return config


@pytest.mark.parametrize("variant", VARIANTS)
async def test_the_model_info_says_what_a_variant_takes(serve_variant, variant):
    async with serve_variant(variant) as served:
        info = await served.stub.GetModelInfo(pb.GetModelInfoRequest())
        (model,) = (await served.stub.ListModels(pb.ListModelsRequest())).models
    kinds = {
        "c": [pb.VOICE_KIND_SPEAKER],
        "b": [pb.VOICE_KIND_PROMPT, pb.VOICE_KIND_REFERENCE, pb.VOICE_KIND_HIFI],
        "d": [],
    }
    assert info.voice_kinds == kinds[variant[0]]
    assert info.no_styles == (variant not in ("custom17", "design"))
    assert (info.architecture, info.output_sample_rate_hz, info.samples_per_step) == ("qwen3_tts", 24000, 1920)
    assert (info.speech_languages, info.languages) == (LANGUAGES, LANGUAGES)
    assert info.sampling_fields == [*SAMPLING, "seed", "min_steps", "max_steps"]
    assert info.needs_voice == variant.startswith("base")
    assert info.text_streaming and info.default_max_silence.ToMilliseconds() == 2000
    assert not (info.feat_dim or info.patch_size or info.inference_timesteps or info.loras)
    default = info.default_sampling
    assert (default.top_k, round(default.repetition_penalty, 4), default.top_p) == (50, 1.05, 1)
    assert (default.code_top_k, round(default.code_temperature, 4), default.min_steps) == (50, 0.9, 2)
    assert not default.HasField("cfg_value") and not default.HasField("inference_timesteps")
    assert (model.presets, model.default_voice) == (info.presets, info.default_voice)
    assert bool(info.presets) == variant.startswith("custom")


# ---- voices


@pytest.mark.parametrize("variant", ["custom06", "design"])
async def test_recordings_need_base(serve_variant, variant):
    has = "its voices are presets" if variant == "custom06" else "its voice is what a style describes"
    async with serve_variant(variant) as served:
        for method, name in (("AddPrompt", "prompt"), ("AddReference", "reference"), ("AddHifi", "hifi voice")):
            await refused(add(served, method), LACKING, f"a {name} {BASE}")
        for fields, name in (
            ({"inline_prompt": INLINE_PROMPT}, "prompt"),
            ({"prompt_id": "prm_" + "a" * 32}, "prompt"),
            ({"inline_reference": INLINE_REFERENCE}, "reference"),
            ({"reference_id": "narrator"}, "reference"),
            ({"hifi_id": "narrator"}, "hifi voice"),
        ):
            await refused(served.generate(conditioned(**fields), "Hello."), LACKING, f"a {name} {BASE}")
        await refused(served.generate(conditioned(inline_prompt=INLINE_PROMPT), "Hi."), LACKING, has)
        assert not served.pool.requests and not served.pool.encoded


async def test_base_needs_a_voice(serve_variant):
    async with serve_variant("base06") as served:
        said = "speech without a voice needs Qwen3-TTS VoiceDesign or CustomVoice"
        await refused(served.generate("Hello."), LACKING, said)
        await refused(served.generate(conditioned(no_voice=True), "Hello."), LACKING, said)
        await refused(served.generate(conditioned(preset="vivian"), "Hi."), "NOT_FOUND", "the model has no presets")


async def test_base_speaks_with_a_reference_a_prompt_and_both(serve_variant):
    async with serve_variant("base17") as served:
        ids = {method: (await add(served, method))[0].handle.id for method in CONFIGS}
        for id in ids.values():
            assert (await served.generate(conditioned(voice=id), "Hello."))[-1].HasField("summary")
        prompt, reference, hifi = (request.conditioning for request in served.pool.requests)
        assert reference.prompt is None and {*reference.reference.content} == {"speaker"}
        assert reference.reference.content["speaker"].dtype == np.float32
        codes = prompt.prompt.content["codes"]
        assert prompt.reference is None and prompt.prompt.text == "Hello world. "
        assert codes.dtype == np.int16 and codes.shape == (32, 16), "of two seconds, and half of one without sound"
        np.testing.assert_array_equal(hifi.prompt.content["codes"], codes)
        np.testing.assert_array_equal(
            hifi.reference.content["speaker"], reference.reference.content["speaker"], strict=True
        )
        again = await add(served, "AddPrompt")
        assert again[0].handle.reused and again[0].handle.id == ids["AddPrompt"]


@pytest.mark.parametrize("variant", VARIANTS)
async def test_latents_are_refused(serve_variant, variant):
    async with serve_variant(variant) as served:
        for role in (PROMPT, REFERENCE):
            messages = upload(pb.EncodeLatentsRequest, pb.EncodeLatentsConfig(role=role), (role, recording()))
            await refused(served.stub.EncodeLatents(messages), LACKING, "latents need VoxCPM")
        inline = pb.InlinePrompt(latents=LATENTS, transcript="Hi. ")
        said = "latents need VoxCPM" if variant.startswith("base") else BASE
        await refused(served.generate(conditioned(inline_prompt=inline), "Hello."), LACKING, said)


async def test_a_reference_is_not_reconstructed(serve_variant):
    preview = pb.Preview(mode=pb.PREVIEW_MODE_RECONSTRUCTION)
    async with serve_variant("base06") as served:
        said = "of which no audio is left; set the preview to PREVIEW_MODE_SYNTHESIS"
        await refused(add(served, "AddReference", preview=preview), LACKING, said)
        assert not served.pool.encoded
        chunks = await add(served, "AddPrompt", preview=preview)
        assert chunks[-1].summary.total_samples == 32 * 1920
        spoken = pb.Preview(mode=pb.PREVIEW_MODE_SYNTHESIS, text="Hello.")
        assert (await add(served, "AddReference", preview=spoken))[-1].summary.total_samples


@pytest.mark.parametrize("variant", VARIANTS)
async def test_adapters_are_refused(serve_variant, variant):
    async with serve_variant(variant) as served:
        await refused(served.generate(turn(lora="warm"), "Hello."), LACKING, "LoRA adapters need VoxCPM")


async def test_an_empty_transcript_and_an_empty_text_are_invalid(serve_variant):
    async with serve_variant("base06") as served:
        prompt = pb.InlinePrompt(audio=AUDIO, transcript=" ")
        await refused(served.generate(conditioned(inline_prompt=prompt), "Hi."), INVALID, "the transcript is empty")
        await refused(served.generate(voiced("base06"), "  "), INVALID, "there is nothing to speak")


# ---- styles and languages


@pytest.mark.parametrize("variant", VARIANTS)
async def test_styles_are_for_large_models_that_do_not_clone(serve_variant, variant):
    async with serve_variant(variant) as served:
        config = voiced(variant, turn=pb.TurnConfig(style="very calm"))
        if variant in ("custom17", "design"):
            await served.generate(config, "One. ", "Two.")
            assert [request.style for request in served.pool.requests] == ["very calm"] * 2
            return
        said = "a style needs Qwen3-TTS 1.7B CustomVoice or VoiceDesign"
        await refused(served.generate(config, "Hello."), LACKING, said)
        await refused(served.generate(voiced(variant), "Hello. ", pb.TurnConfig(style="calm")), LACKING, said)
        assert not any(request.style for request in served.pool.requests)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("language", "tag"), [("", ""), ("auto", ""), ("de", "de"), ("pt-BR", "pt"), ("cmn", "zh"), ("Japanese", "ja")]
)
async def test_a_turn_names_its_language(serve_variant, variant, language, tag):
    async with serve_variant(variant) as served:
        await served.generate(voiced(variant, turn=pb.TurnConfig(language=language)), "Hello.")
        assert served.pool.requests[-1].language == tag


@pytest.mark.parametrize("variant", ["custom17", "base06", "design"])
async def test_a_language_that_the_model_does_not_speak_is_refused(serve_variant, variant):
    listed = f"language is 'sv'; it must be one of {', '.join(LANGUAGES)}"
    async with serve_variant(variant) as served:
        swedish = pb.TurnConfig(language="Swedish")
        await refused(served.generate(voiced(variant, turn=swedish), "Hi."), INVALID, listed, "config.turn.language")
        await refused(served.generate(voiced(variant), "Hello. ", swedish), INVALID, listed, "turn.language")
        await refused(served.generate(turn(language="??"), "Hello."), INVALID, "it must be a BCP 47 tag")


# ---- sampling


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("top_k", 0, "top_k is 0; it must be from 1 to 1536"),
        ("top_k", 1537, "it must be from 1 to 1536"),
        ("top_p", 0.0, "top_p is 0.0; it must be above 0, up to 1"),
        ("top_p", float("nan"), "top_p is nan; it must be above 0, up to 1"),
        ("top_p", 1.5, "it must be above 0, up to 1"),
        ("temperature", -1.0, "it must be from 0 to 2"),
        ("temperature", float("inf"), "it must be from 0 to 2"),
        ("repetition_penalty", 0.5, "repetition_penalty is 0.5; it must be from 1 to 2"),
        ("code_temperature", float("nan"), "it must be from 0 to 2"),
        ("code_top_k", 0, "it must be from 1 to 512"),
        ("code_top_p", 0.0, "it must be above 0, up to 1"),
    ],
)
async def test_an_option_out_of_range_is_invalid(serve_variant, field, value, said):
    async with serve_variant("design") as served:
        config = turn(sampling=pb.Sampling(**{field: value}))
        await refused(served.generate(config, "Hello."), INVALID, said, f"config.turn.sampling.{field}")
        assert not served.pool.requests


@pytest.mark.parametrize("variant", VARIANTS)
async def test_the_options_of_other_models_are_refused_with_those_there_are(serve_variant, variant):
    others: dict[str, Any] = {"cfg_value": 2.0, "inference_timesteps": 10}
    async with serve_variant(variant) as served:
        for name, value in others.items():
            config = voiced(variant, turn=pb.TurnConfig(sampling=pb.Sampling(**{name: value})))
            said = f"has no {name}; its sampling options are {', '.join(SAMPLING)}"
            await refused(served.generate(config, "Hello."), LACKING, said)


async def test_the_options_of_a_turn_reach_the_engine(serve_variant):
    given: dict[str, Any] = {"temperature": 0.5, "top_k": 7, "top_p": 0.25, "repetition_penalty": 1.5}
    given |= {"code_temperature": 0.0, "code_top_k": 3, "code_top_p": 0.75}
    async with serve_variant("custom06") as served:
        await served.generate(turn(sampling=pb.Sampling(**given)), "Hello. ")
        await served.generate("Hello.")
    chosen, usual = (request.sampling for request in served.pool.requests)
    assert {name: getattr(chosen, name) for name in given} == given
    assert (usual.top_k, usual.repetition_penalty, usual.code_temperature, usual.top_p) == (50, 1.05, 0.9, 1.0)
    assert (usual.steps_per_token, usual.max_silent_steps, usual.min_steps) == (12.0, 25, 2)
