"""With the same checkpoint and noise, the engine gives the latents and the audio of the official package."""

import numpy as np
import pytest
import torch
from support.engines import goldens
from support.engines.tiny import at_rest, engine, finished, latents, run
from support.engines.voice_parts import encoded

from voxcpm_grpc.request import Role


@pytest.mark.parametrize("name", [case["name"] for case in goldens.CASES])
def test_the_engine_generates_the_speech_of_the_official_package(name):
    golden = goldens.load(name)
    eng = engine(noise=torch.from_numpy(golden.noise))
    eng.add(golden.request)
    outcome = run(eng)[name]
    assert finished(outcome).steps == len(golden.latents) >= 8
    assert finished(outcome).reason == ("stop" if golden.ended_by == "stop" else "max_steps")
    np.testing.assert_allclose(latents(outcome), golden.latents, atol=1e-4, rtol=0)
    golden.same_audio(outcome.waveform, atol=1e-4)
    assert at_rest(eng)


def test_the_cases_cover_every_mode_guidance_and_timestep_count():
    cases = goldens.CASES
    assert {case["mode"] for case in cases} == {"zero_shot", "design", "prompt", "reference", "hifi"}
    assert {(case["cfg_value"], case["timesteps"]) for case in cases} == {(c, n) for c in (1, 2, 3) for n in (4, 10)}
    assert all(case["fsq_margin"] > 1e-4 for case in cases)
    assert {case["ended_by"] for case in cases} == {"stop", "cap", "max_len"}


@pytest.mark.parametrize("name", ["prompt", "reference", "hifi"])
def test_recordings_are_encoded_as_the_official_package_does(name):
    tensors = goldens.load(name).tensors
    codec = engine().model.codec
    for role in ("prompt", "reference"):
        if (waveform := tensors.get(f"{role}_waveform")) is None:
            continue
        with torch.inference_mode():
            ours = encoded(codec, waveform, Role(role))
        np.testing.assert_allclose(ours, tensors[f"{role}_latents"], atol=1e-5, rtol=0)
