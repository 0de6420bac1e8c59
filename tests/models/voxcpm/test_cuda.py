"""The model on a GPU gives the official results in float32, is near them in bfloat16, and its steps can be captured."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from support.engines.plans import plan_of
from support.engines.voice_parts import voice_part

from voxcpm_grpc.models.base import StepRows
from voxcpm_grpc.request import Conditioning, Request, Role, Sampling

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
GPU = torch.device("cuda")


def request(golden: dict[str, torch.Tensor], case: dict) -> Request:
    return Request(
        id="r",
        text=case["text"],
        sampling=Sampling(seed=3),
        conditioning=Conditioning(
            prompt=voice_part(golden["prompt_latents"].numpy(), case["prompt_text"]),
            reference=voice_part(golden["reference_latents"].numpy()),
        ),
    )


@pytest.fixture
def case(goldens) -> dict:
    cases = json.loads((goldens / "manifest.json").read_text())["cases"]
    return next(case for case in cases if case["mode"] == "hifi" and case["timesteps"] == 10)


@pytest.fixture
def golden(case, goldens) -> dict[str, torch.Tensor]:
    return load_file(goldens / case["file"])


@pytest.mark.parametrize("attention", ["reference", "triton"])
def test_float32_gives_the_official_generation(load, driver, case, golden, attention):
    model = load(device=GPU, attention=attention, recorded_noise=golden["noise"], timesteps=(10,))
    run = driver(model)
    run.start(1, plan_of(model, request(golden, case)), Sampling(cfg_value=case["cfg_value"]))
    audio = torch.cat([run.step(1).audio[0] for _ in range(case["patches"])]).cpu()
    assert (run.made(1).cpu() - golden["latents"]).abs().max() < 1e-3
    assert (audio[:: case["audio_stride"]] - golden["audio"]).abs().max() < 1e-3


def test_recordings_become_the_official_latents(load, golden):
    pieces = load(device=GPU).codec.encode(golden["reference_waveform"].numpy(), Role.REFERENCE)
    latents = torch.cat([piece.cpu() for _, piece in pieces])
    assert (latents - golden["reference_latents"]).abs().max() < 1e-3


def test_modules_in_bfloat16_are_near_those_in_float32(load, bfloat16_checkpoint, bfloat16, modules):
    model = load(bfloat16_checkpoint, device=GPU, dtype=torch.bfloat16)

    def near(ours: torch.Tensor, truth: torch.Tensor) -> None:
        assert ours.isfinite().all()
        assert torch.cosine_similarity(ours.float().cpu().flatten(), truth.flatten(), dim=0) > 0.999

    patches = modules["mixed.locenc.input"]
    near(model.networks.encode_patch(patches.to(GPU, torch.bfloat16)), bfloat16.networks.encode_patch(patches))
    x, cond = (modules[f"euler.{key}"].T[None] for key in ("x", "cond"))
    mu, cfg = modules["euler.mu"].unflatten(0, (2, -1))[None], torch.tensor([2.0])
    ours = model.flow(x.to(GPU), mu.to(GPU, torch.bfloat16), cond.to(GPU, torch.bfloat16), cfg.to(GPU), 10)
    near(ours, bfloat16.flow(x, mu, cond, cfg, 10))
    hidden = modules["fusion.input"]
    near(model.networks.fusion(hidden.to(GPU, torch.bfloat16)), bfloat16.networks.fusion(hidden))
    for name in ("cos", "sin"):
        assert torch.equal(getattr(model.rope, name).cpu(), getattr(bfloat16.rope, name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_captured_step_equals_an_eager_one(load, driver, case, golden, dtype):
    """No part of a step waits for the host, allocates by content or uses another stream."""
    model = load(device=GPU, dtype=dtype)
    eager, captured = driver(model), driver(model)
    for run in (eager, captured):
        for slot in (0, 1):
            run.start(slot, plan_of(model, request(golden, case)), Sampling(seed=slot))
    rows = captured.rows(0, 1)
    eager.step(0, 1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model.step(rows, 10, captured.state, captured.kv)  # initializes the libraries, and is the first step
    torch.cuda.current_stream().wait_stream(stream)
    graph, s = torch.cuda.CUDAGraph(), captured.state
    with torch.cuda.graph(graph):
        frame = model.step(rows, 10, s, captured.kv)
    for _ in range(4):
        update(rows, captured.rows(0, 1))
        graph.replay()
        expected = eager.step(0, 1)
        assert (frame.audio - expected.audio).abs().max() < (1e-4 if dtype == torch.float32 else 0.3)
        assert frame.finite.all()
    assert torch.equal(s.step, eager.state.step)
    assert torch.equal(s.position, eager.state.position)


def update(static: StepRows, new: StepRows) -> None:
    static.position.copy_(new.position)
    for name in ("cu_seqlens", "context", "block_table", "write"):
        getattr(static.paged, name).copy_(getattr(new.paged, name))
