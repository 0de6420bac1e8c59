"""A request beyond a variant is refused with the variant that can."""

from __future__ import annotations

import re

import numpy as np
import pytest
from support.engines.qwen3 import cloned, codes_of, engine, shared
from support.engines.tiny import at_rest, run

from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, NotFound, Reason, VoxCPMError
from voxcpm_grpc.request import Adapter, Conditioning, Request, Sampling, VoicePart

ADAPTER = Adapter(fingerprint="f", directory="d", name="warm", source="s")
SPEAKER = np.zeros(64, np.float32)
HIFI = Conditioning(prompt=cloned(4).prompt, reference=cloned(0).reference)


def ask(**fields) -> Request:
    return Request(id="a", text="Hello.", **fields)


def refused(variant: str, request: Request, kind: type[VoxCPMError]) -> VoxCPMError:
    eng = engine(variant)
    with pytest.raises(kind) as caught:
        eng.add(request)
    assert not eng.busy and at_rest(eng)
    return caught.value


@pytest.mark.parametrize(
    ("variant", "request_", "field", "said"),
    [
        (
            "custom17",
            ask(conditioning=cloned(4)),
            "prompt",
            "a prompt needs Qwen3-TTS Base, .*; its voices are presets",
        ),
        ("custom06", ask(conditioning=cloned(0)), "reference", "a reference needs Qwen3-TTS Base"),
        ("design", ask(conditioning=cloned(0)), "reference", "needs Qwen3-TTS Base, .* its voice is what a style"),
        ("design", ask(conditioning=HIFI), "prompt", "a prompt needs Qwen3-TTS Base"),
        ("design", ask(conditioning=Conditioning(speaker="eric")), "speaker", "built-in voice needs .* CustomVoice"),
        ("base06", ask(conditioning=Conditioning(speaker="eric")), "speaker", "built-in voice needs .* CustomVoice"),
        ("custom06", ask(style="calm"), "style", r"a style needs Qwen3-TTS 1\.7B CustomVoice or VoiceDesign"),
        ("base17", ask(style="calm", conditioning=cloned(0)), "style", "send the text without a style"),
        ("custom17", ask(conditioning=Conditioning(adapter=ADAPTER)), "lora", "LoRA adapters need VoxCPM"),
        ("custom17", ask(sampling=Sampling(cfg_value=2.0)), "cfg_value", "has no cfg_value; its sampling options are"),
        ("base06", ask(conditioning=cloned(0), sampling=Sampling(inference_timesteps=4)), "inference_timesteps", "has"),
    ],
)
def test_what_a_variant_cannot_do_is_refused_with_the_one_that_can(variant, request_, field, said):
    error = refused(variant, request_, FailedPrecondition)
    assert error.field == field and re.search(said, error.message), error.message
    assert "{" not in error.message


def test_a_base_model_needs_a_voice_but_for_the_first_request_of_an_engine():
    with pytest.raises(FailedPrecondition, match="speech without a voice needs Qwen3-TTS VoiceDesign or CustomVoice"):
        shared("base17").info.require("no_voice", "conditioning")
    eng = engine("base17")
    eng.add(ask(sampling=Sampling(min_steps=0, max_steps=2)))
    assert run(eng)["a"].error is None and at_rest(eng)


def test_latents_are_refused_by_all():
    for variant in ("custom06", "custom17", "base06", "base17", "design"):
        with pytest.raises(FailedPrecondition, match="latents need VoxCPM"):
            shared(variant).info.require("latents", "latents")


@pytest.mark.parametrize(
    ("sampling", "field"),
    [
        (Sampling(top_k=0), "top_k"),
        (Sampling(top_k=1537), "top_k"),
        (Sampling(top_p=0.0), "top_p"),
        (Sampling(top_p=float("nan")), "top_p"),
        (Sampling(temperature=2.1), "temperature"),
        (Sampling(code_temperature=float("nan")), "code_temperature"),
        (Sampling(code_top_k=513), "code_top_k"),
        (Sampling(code_top_p=1.01), "code_top_p"),
        (Sampling(repetition_penalty=0.9), "repetition_penalty"),
    ],
)
def test_options_out_of_range_are_refused(sampling, field):
    error = refused("design", ask(sampling=sampling), InvalidRequest)
    assert error.field == field and error.message.startswith(f"{field} is ")


def test_an_unknown_language_and_an_unknown_speaker_are_refused():
    error = refused("design", ask(language="sv"), InvalidRequest)
    assert "language is 'sv'; it must be one of en, zh, de, es, ja, fr, ko, ru, it, pt" in error.message
    error = refused("custom06", ask(conditioning=Conditioning(speaker="Vivien")), NotFound)
    assert "the nearest name is 'vivian'" in error.message and error.field == "speaker"


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"codes": np.zeros((3, 15), np.int16), "speaker": SPEAKER}, r"codes of shape \[steps, 16\]"),
        ({"codes": np.zeros((3, 16), np.float32), "speaker": SPEAKER}, r"codes of shape \[steps, 16\]"),
        ({"codes": np.full((3, 16), 512, np.int16), "speaker": SPEAKER}, "codes from 0 to 511"),
        ({"codes": np.full((3, 16), -1, np.int16), "speaker": SPEAKER}, "codes from 0 to 511"),
        ({"codes": np.zeros((3, 16), np.int16)}, "a speaker vector of 64 finite numbers"),
        ({"codes": np.zeros((3, 16), np.int16), "speaker": SPEAKER[:9]}, "a speaker vector of 64"),
        ({"codes": np.zeros((3, 16), np.int16), "speaker": SPEAKER + np.nan}, "a speaker vector of 64 finite"),
        ({"codes": np.zeros((0, 16), np.int16), "speaker": SPEAKER}, "has no audio"),
    ],
)
def test_a_voice_of_another_model_is_refused(part, said):
    voice = Conditioning(prompt=VoicePart(content=part, tracks=("codes",), text="as is said"))
    error = refused("base06", ask(conditioning=voice), InvalidRequest)
    assert error.field == "prompt" and re.search(said, error.message)


def test_a_prompt_needs_its_transcript():
    error = refused("base06", ask(conditioning=cloned(4, text=" ")), InvalidRequest)
    assert "send the transcript" in error.message


def test_reasons_are_those_that_clients_know():
    assert refused("design", ask(conditioning=cloned(0)), FailedPrecondition).reason is Reason.REFERENCES_NOT_SUPPORTED
    assert refused("custom06", ask(style="calm"), FailedPrecondition).reason is Reason.STYLES_NOT_SUPPORTED


def test_without_a_voice_the_first_speaker_by_name_speaks_in_any_case_of_letters():
    eng, made = engine("custom06"), list[np.ndarray]()
    for number, speaker in enumerate(("", "Aiden", "vivian")):
        sampling = Sampling(seed=1, min_steps=3, max_steps=3)
        voice = Conditioning(speaker=speaker)
        eng.add(Request(id=str(number), text="Hello.", sampling=sampling, conditioning=voice, keep_speech=True))
        made.append(codes_of(run(eng)[str(number)]))
    assert np.array_equal(made[0], made[1]) and not np.array_equal(made[0], made[2])
    assert shared("custom06").info.speakers[0] == "aiden" and not shared("base06").info.speakers


def test_the_reference_replaces_the_speaker_of_a_prompt():
    model = shared("base06")
    plan = model.plan(model.info.checked(ask(conditioning=HIFI)))
    assert HIFI.reference is not None
    assert np.array_equal(plan.own.speaker, HIFI.reference.content["speaker"]) and len(plan.own.codes) == 4


def test_the_limit_of_a_text_is_a_second_for_a_token_and_no_less_than_192_steps():
    model = shared("design")

    def limits(text: str, **sampling) -> tuple[float, float]:
        plan = model.plan(model.info.checked(Request(id="a", text=text, sampling=Sampling(**sampling))))
        return plan.max_steps, plan.ran_on_steps

    long = "12 " * 50
    tokens = len(model.prompt_layout.tokenizer(long))
    assert limits("Hello.") == (192, 192) and limits(long) == (12 * tokens, 12 * tokens)
    assert limits(long, steps_per_token=100.0)[0] == 100 * tokens
    assert limits(long, max_steps=20) == (20, 12 * tokens)
    assert model.info.ends.max_silent_steps == 25
