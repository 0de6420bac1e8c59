"""The memory that is computed from config.json is that of the model. The codec is always the released one."""

from __future__ import annotations

import gc
import json

import pytest
import torch
from support.engines.qwen3 import load, shared
from support.engines.qwen3_codec import checkpoint

from tools.qwen3_checkpoint_layout import VARIANTS, model_config
from voxcpm_grpc.engine.start.memory import engine_memory
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.layers.weights import bytes_of
from voxcpm_grpc.models.base import LoadOptions
from voxcpm_grpc.models.loading import measure_model

OPTIONS = LoadOptions(device=torch.device("meta"), dtype=torch.float32, max_slots=8)
RELEASED = {"0b6": 905_788_672, "1b7": 1_916_676_352}  # parameters without the speaker encoder
SPEAKER = {"base06": 8_854_336, "base17": 12_001_088}
UNUSED = 16 * (2048 * 256 + 2048 + 1)  # of the codebooks behind those of the codes
PROJECTED = 16 * 2048 * 256  # the entries of the codebooks are kept behind their projections, twice as wide
CODEC = 114_323_137 + PROJECTED, 56_234_304 - UNUSED  # parameters of decoder and encoder


@pytest.mark.parametrize("variant", ["custom06", "custom17", "base06"])
def test_the_weights_of_a_tiny_model_are_measured(variant):
    model, measured = shared(variant), measure_model(checkpoint(variant), OPTIONS)
    packed = sum(map(bytes_of, (model.networks.codes, model.networks.text)))  # whose layers keep no second copy
    assert measured.weights > packed and measured.layout == model.layout and measured.positions == 4096
    sizes = model.config.text
    table = sizes.text_vocab_size * model.config.talker.hidden_size * 4  # on a GPU instead of embedding and projection
    assert bytes_of(model.networks.codes) + table < measured.weights


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_memory_of_a_released_model_follows_from_its_parameters(variant, tmp_path):
    config = model_config(VARIANTS[variant], full=True, first_special=151643)
    (tmp_path / "config.json").write_text(json.dumps(config))
    memory = engine_memory(tmp_path, 64)
    talker = config["talker_config"]
    hidden, text = talker["hidden_size"], talker["text_hidden_size"]
    projection = text * text + text + hidden * text + hidden
    table = 151936 * (hidden - text) - projection  # rows of the text in place of embedding and projection
    narrow = config["talker_config"]["code_predictor_config"]["hidden_size"]
    # The predictor reads the rows of codes in its own width.
    codes = (talker["vocab_size"] + 15 * 2048) * narrow if narrow < hidden else 0
    wanted = 2 * (RELEASED[VARIANTS[variant].size] + table + codes)
    assert abs(memory.footprint.weights - wanted) < 0.005 * wanted
    own = 2 * CODEC[0] + 4 * (CODEC[1] + SPEAKER[variant] if variant in SPEAKER else 0)
    assert abs(memory.footprint.codec - own) < 0.03 * own
    assert memory.footprint.layout.bytes_per_position == 114_688
    assert memory.footprint.slot == pytest.approx(2.756e6, rel=0.01)


def test_a_length_that_the_model_does_not_have_is_refused():
    with pytest.raises(StartupError, match="supports 1 to 4096"):
        measure_model(checkpoint("design"), LoadOptions(device=OPTIONS.device, dtype=OPTIONS.dtype, max_model_len=5000))


@pytest.mark.gpu
@pytest.mark.parametrize("codec_dtype", [None, torch.float32], ids=str)
def test_the_weights_on_a_gpu_are_those_that_are_measured(codec_dtype):
    cuda = torch.device("cuda")
    options = {"dtype": torch.bfloat16, "codec_dtype": codec_dtype}

    def allocated() -> int:
        gc.collect()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    load("custom17", device=cuda, **options)  # libraries take memory of their own, once
    before = allocated()
    model = load("custom17", device=cuda, **options)
    taken = allocated() - before
    measured = measure_model(checkpoint("custom17"), LoadOptions(device=OPTIONS.device, **options))
    wanted = measured.weights + bytes_of(model.codec)
    assert abs(taken - wanted) < 0.05 * wanted
