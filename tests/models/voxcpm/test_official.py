"""Whole generations equal the official ones with the same noise."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.engines.plans import plan_of
from support.engines.voice_parts import encoded, voice_part

from voxcpm_grpc.request import Conditioning, Request, Role, Sampling

GOLDENS = Path(__file__).parents[2] / "goldens"
CASES = json.loads((GOLDENS / "manifest.json").read_text())["cases"]


def request_of(case: dict, golden: dict[str, torch.Tensor]) -> Request:
    prompt, reference = (golden.get(f"{name}_latents") for name in ("prompt", "reference"))
    return Request(
        id=case["name"],
        text=case["text"],
        sampling=Sampling(
            cfg_value=case["cfg_value"],
            inference_timesteps=case["timesteps"],
            min_steps=case["min_len"],
            max_steps=case["max_len"],
        ),
        conditioning=Conditioning(
            prompt=None if prompt is None else voice_part(prompt.numpy(), case["prompt_text"]),
            reference=None if reference is None else voice_part(reference.numpy()),
        ),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_official_generations(load, driver, case):
    golden = load_file(GOLDENS / case["file"])
    model = load(recorded_noise=golden["noise"], timesteps=(case["timesteps"],))
    request = request_of(case, golden)
    rows = plan_of(model, request)
    assert rows.own.tokens[~rows.own.audio].tolist() == golden["ids"][golden["text_mask"].bool()].tolist()
    assert rows.own.audio.tolist() == golden["audio_mask"].bool().tolist()
    assert rows.max_steps == case["cap"]

    run = driver(model)
    run.start(1, rows, request.sampling, chunk=7)
    audio, ended = [], "cap"
    for i in range(rows.max_steps):
        frame = run.step(1, timesteps=case["timesteps"])
        audio.append(frame.audio[0])
        assert frame.stop.item() == golden["stop_logits"][i].diff().gt(0).item()
        assert frame.finite.all()
        if i + 1 > rows.least_steps and frame.stop.item():
            ended = "stop"
            break
    assert len(audio) == case["patches"]
    assert (ended == "stop") == (case["ended_by"] == "stop")
    assert (run.made(1) - golden["latents"]).abs().max() < 1e-4
    samples = torch.cat(audio)
    assert len(samples) == case["samples"]
    assert (samples[:: case["audio_stride"]] - golden["audio"]).abs().max() < 1e-4


@pytest.mark.parametrize(
    "case", [c for c in CASES if c["mode"] in ("prompt", "hifi", "reference")], ids=lambda c: c["name"]
)
def test_official_latents_of_recordings(tiny, case):
    golden = load_file(GOLDENS / case["file"])
    recorded = [name for name in ("prompt", "reference") if f"{name}_waveform" in golden]
    assert recorded
    for name in recorded:
        ours = encoded(tiny.codec, golden[f"{name}_waveform"].numpy(), Role(name))
        assert np.abs(ours - golden[f"{name}_latents"].numpy()).max() < 1e-4
