"""With weights of 8 bits, speech is that of a model whose weights were rounded before: alone, batched, adapted."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support.engines import goldens
from support.engines.checkpoints import TINY
from support.engines.tiny import engine, finished, latents, mixed_requests, run, with_adapter

from tools.voice import round_weights
from voxcpm_grpc import lora_files
from voxcpm_grpc.models.base import AdapterOptions
from voxcpm_grpc.models.voxcpm.model import VoxCPM

pytestmark = pytest.mark.thorough

ADAPTER = goldens.GOLDENS / "lora_layers" / "adapter"


@pytest.fixture(scope="module")
def rounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny checkpoint with its weights rounded as tools/voice judges them."""
    out = tmp_path_factory.mktemp("rounded") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["round_weights", str(TINY), str(out), "--parts", "lm"])
        round_weights.main()
    return out


def speech(requests=None, *, adapted: bool = False, **options):
    """The outcomes of requests, with plain operations. adapted: half of the requests use an adapter."""
    adapters = AdapterOptions(2, 16, frozenset({"attention", "mlp", "projections"})) if adapted else None
    eng, adapter = engine(fused=False, adapters=adapters, **options), lora_files.describe("x", "", ADAPTER)
    if adapted:
        eng.adapters.read_now(adapter)
    for index, request in enumerate(requests or mixed_requests()):
        eng.add(with_adapter(request, adapter if adapted and index % 2 else None))
    return run(eng)


@pytest.mark.parametrize("adapted", [False, True], ids=["model alone", "with an adapter"])
def test_speech_is_that_of_a_model_whose_weights_were_rounded_before(rounded, adapted):
    expected = speech(adapted=adapted, checkpoint=rounded)
    outcomes, whole = speech(adapted=adapted, quantization="fp8"), speech(adapted=adapted)
    for id, one in expected.items():
        assert finished(outcomes[id]).steps == finished(one).steps
        np.testing.assert_allclose(latents(outcomes[id]), latents(one), atol=1e-5)  # batches depend on the time
        assert not np.array_equal(latents(one), latents(whole[id]))


def test_streams_in_a_batch_make_the_same_audio_as_alone():
    together = speech(quantization="fp8")
    for request in mixed_requests():
        alone = speech([request], quantization="fp8")[request.id]
        np.testing.assert_allclose(together[request.id].waveform, alone.waveform, atol=1e-5)


def test_an_adapter_is_merged_before_weights_are_rounded():
    def maps(**options):
        model = engine(fused=False, merge_lora=ADAPTER, **options).model
        assert isinstance(model, VoxCPM)
        (layer, *_) = model.networks.base.layers
        return layer.qkv, layer.out, layer.gate_up, layer.down

    for whole, quantized in zip(maps(), maps(quantization="fp8"), strict=True):
        np.testing.assert_array_equal(quantized.dequantized(whole.weight.dtype), round_weights.rounded(whole.weight))
