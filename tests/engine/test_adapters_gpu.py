"""LoRA adapters on a GPU: captured steps and prefills with several of them and none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.engines import goldens
from support.engines.checkpoints import TINY
from support.engines.tiny import (
    Outcome,
    adapted_requests,
    at_rest,
    finished,
    latents,
    run,
    run_arriving,
    watch_joins,
    with_adapter,
)

from voxcpm_grpc import lora_files
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.models.base import AdapterOptions, LoadOptions
from voxcpm_grpc.models.loading import load_model
from voxcpm_grpc.request import Request
from voxcpm_grpc.settings.engine import EngineSettings

pytestmark = pytest.mark.gpu
FOLDERS = {"layers": goldens.GOLDENS / "lora_layers", "attention": goldens.GOLDENS / "lora_attention"}
ADAPTERS = {name: lora_files.describe(name, "", folder / "adapter") for name, folder in FOLDERS.items()}
KINDS = frozenset({"attention", "mlp", "projections"})


def adapted_engine(*, slots=16, banks=2, noise=None, graphs=True, **settings) -> Engine:
    device = torch.device("cuda", 0)
    options = LoadOptions(
        device=device,
        dtype=torch.float32,
        attention="triton",
        max_slots=slots,
        recorded_noise=noise,
        adapters=AdapterOptions(banks, 16, KINDS),
    )
    eng = Engine(load_model(TINY, options), EngineSettings(**settings), device, graphs=graphs)
    for adapter in ADAPTERS.values():
        eng.adapters.read_now(adapter)
    return eng


@pytest.mark.parametrize("name", ["zero_shot", "hifi"])
@pytest.mark.parametrize("lora", FOLDERS)
def test_speech_with_an_adapter_equals_that_of_the_official_package(lora, name):
    golden = goldens.load(name, FOLDERS[lora])
    eng = adapted_engine(noise=torch.from_numpy(golden.noise))
    eng.add(with_adapter(golden.request, ADAPTERS[lora]))
    outcome = run(eng)[name]
    np.testing.assert_allclose(latents(outcome), golden.latents, atol=1e-3, rtol=0)
    golden.same_audio(outcome.waveform, atol=1e-3)


def requests() -> list[Request]:
    return adapted_requests(8, {name: folder / "adapter" for name, folder in FOLDERS.items()})


@pytest.mark.parametrize("banks", [1, 2])
@pytest.mark.parametrize("kv_positions", [None, 128])
def test_a_mixed_batch_in_graphs_equals_each_request_alone(banks, kv_positions):
    alone: dict[str, Outcome] = {}
    for request in requests():
        eng = adapted_engine(slots=1, graphs=False)
        eng.add(request)
        alone |= run(eng)
    eng = adapted_engine(banks=banks, kv_positions=kv_positions)
    for request in requests():
        eng.add(request)
    outcomes = run(eng)
    for name, expected in alone.items():
        assert finished(outcomes[name]).steps == finished(expected).steps
        np.testing.assert_allclose(latents(outcomes[name]), latents(expected), atol=1e-3)
        np.testing.assert_allclose(outcomes[name].waveform, expected.waveform, atol=1e-3)
    assert at_rest(eng)


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("banks", [1, 2])
def test_prompts_that_join_a_round_keep_their_adapter(banks, every):
    alone: dict[str, Outcome] = {}
    for request in requests():
        eng = adapted_engine(slots=1, graphs=False)
        eng.add(request)
        alone |= run(eng)
    eng = adapted_engine(banks=banks)
    eng.join_from = 1
    joins = watch_joins(eng)
    outcomes = run_arriving(eng, requests(), every)
    assert joins and at_rest(eng)
    for name, expected in alone.items():
        assert finished(outcomes[name]).steps == finished(expected).steps
        np.testing.assert_allclose(latents(outcomes[name]), latents(expected), atol=1e-3)
