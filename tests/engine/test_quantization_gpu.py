"""Weights of 8 bits on a Hopper GPU: steps and prefills with kernels and graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.engines import tiny
from support.engines.checkpoints import TINY
from support.engines.gpus import needs_hopper
from support.engines.tiny import at_rest, finished, latents, mixed_requests, run

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.models.voxcpm.model import VoxCPM
from voxcpm_grpc.settings.engine import EngineSettings

pytestmark = [pytest.mark.gpu, needs_hopper]


def engine(*, slots: int, fused: bool, graphs: bool) -> Engine:
    device = torch.device("cuda", 0)
    options = LoadOptions(
        device=device, dtype=torch.float32, attention="triton", max_slots=slots, fused=fused, quantization="fp8"
    )
    return Engine(load_model(TINY, options), EngineSettings(), device, graphs=graphs)


@pytest.mark.parametrize("fused", [False, True])
def test_streams_in_captured_steps_equal_those_alone(fused):
    """Alone a stream takes the products of one row, in a batch those of several."""
    eng = engine(slots=8, fused=fused, graphs=True)
    for request in mixed_requests():
        eng.add(request)
    together = run(eng)
    for request in mixed_requests():
        eng = engine(slots=1, fused=fused, graphs=False)
        eng.add(request)
        (alone,) = run(eng).values()
        assert finished(together[request.id]).steps == finished(alone).steps
        np.testing.assert_allclose(latents(together[request.id]), latents(alone), atol=1e-3)
        assert at_rest(eng)


def test_plain_operations_generate_the_speech_of_a_cpu():
    eng, cpu = engine(slots=8, fused=False, graphs=True), tiny.engine(fused=False, quantization="fp8")
    for request in mixed_requests():
        eng.add(request)
        cpu.add(request)
    outcomes, expected = run(eng), run(cpu)
    for name, one in expected.items():
        np.testing.assert_allclose(latents(outcomes[name]), latents(one), atol=1e-3)


def test_an_engine_starts_with_it_and_serves():
    eng = load_engine(TINY, "tiny", EngineSettings(device="cuda", quantization="fp8", max_slots=8))
    assert isinstance(eng.model, VoxCPM)
    assert eng.model.networks.base.layers[0].qkv.weight.dtype == torch.float8_e4m3fn
    for request in mixed_requests():
        eng.add(request)
    for outcome in run(eng).values():
        assert outcome.error is None
        assert np.isfinite(outcome.waveform).all()
