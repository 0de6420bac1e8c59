"""Engines of the older models give the official speech, alone and in any batch, and their streams join exactly."""

import numpy as np
import pytest
from support.engines import goldens
from support.engines.checkpoints import OLDER
from support.engines.older_models import TOLERANCE, check_batch, check_official_speech, requests_for
from support.engines.tiny import at_rest, engine, latents, run
from support.engines.voice_parts import encoded, latents_of, voice_part

from voxcpm_grpc.errors import FailedPrecondition
from voxcpm_grpc.request import Conditioning, Request, Role

CASES = ("zero_shot_cfg3_n4", "prompt_cfg2_n10", "prompt_two_patches", "max_len")  # tests/system/older-models runs all


@pytest.fixture(scope="module", params=OLDER, ids=lambda path: path.name)
def checkpoint(request):
    return request.param


@pytest.mark.parametrize("name", CASES)
def test_the_engine_generates_the_speech_of_the_official_package(checkpoint, name):
    check_official_speech(checkpoint, name)


def test_the_cases_cover_every_mode_guidance_and_timestep_count(checkpoint):
    cases = goldens.cases(goldens.GOLDENS / checkpoint.name)
    for mode in ("zero_shot", "prompt"):
        covered = {(case["cfg_value"], case["timesteps"]) for case in cases if case["mode"] == mode}
        assert covered == {(c, n) for c in (1, 2, 3) for n in (4, 10)}


def test_recordings_are_encoded_as_the_official_package_does(checkpoint):
    tensors = goldens.load("prompt_two_patches", goldens.GOLDENS / checkpoint.name).tensors
    codec = engine(checkpoint=checkpoint).model.codec
    ours = encoded(codec, tensors["prompt_waveform"], Role.PROMPT)
    np.testing.assert_allclose(ours, tensors["prompt_latents"], atol=1e-5, rtol=0)


def test_streams_in_a_batch_make_the_same_audio_as_alone_also_when_preempted_and_swapped():
    check_batch(OLDER[1], 3, slots=2, kv_positions=64)  # tests/system/older-models has more of both models


def test_a_repeated_request_finds_its_prefix_in_the_cache(checkpoint):
    eng = engine(checkpoint=checkpoint)
    request = requests_for(checkpoint, 4)[3]  # its text fills a page
    waveforms = []
    for _ in range(2):
        eng.add(request)
        waveforms.append(run(eng)[request.id].waveform)
    np.testing.assert_allclose(*waveforms, atol=TOLERANCE)
    assert eng.stats().prefix_hit_tokens > 0


def test_streamed_audio_is_that_of_the_whole_history(checkpoint):
    """Of a stream with a prompt, from its first sample on: the codec has decoded the prompt before."""
    eng = engine(checkpoint=checkpoint)
    for request in requests_for(checkpoint, 3)[::2]:
        eng.add(request)
        outcome = run(eng)[request.id]
        prompt = request.conditioning.prompt
        history = latents(outcome) if prompt is None else np.concatenate([latents_of(prompt), latents(outcome)])
        offline = np.concatenate(list(eng.model.codec.decode({"latents": history})))
        np.testing.assert_allclose(outcome.waveform, offline[-len(outcome.waveform) :], atol=1e-5)


def test_a_reference_is_refused_with_the_name_of_the_model_that_takes_it(checkpoint):
    eng = engine(checkpoint=checkpoint)
    reference = np.zeros((2, 4, 8), np.float32)
    with pytest.raises(FailedPrecondition, match="references and hifi voices need VoxCPM2") as caught:
        eng.add(Request(id="r", text="Hello.", conditioning=Conditioning(reference=voice_part(reference))))
    assert caught.value.field == "reference"


def test_warm_up_changes_neither_stats_nor_speech():
    checkpoint = OLDER[0]
    eng, fresh = engine(checkpoint=checkpoint, slots=2), engine(checkpoint=checkpoint, slots=2)
    before = eng.stats()
    assert eng.warm_up() > 0
    assert eng.stats() == before and at_rest(eng)
    request = requests_for(checkpoint, 3)[2]
    for one in (eng, fresh):
        one.add(request)
    np.testing.assert_allclose(run(eng)[request.id].waveform, run(fresh)[request.id].waveform, atol=TOLERANCE)
