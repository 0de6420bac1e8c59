"""The released models have the tensors that are read, as many parameters as published, and no others."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch

from tools.qwen3_checkpoint_layout import VARIANTS, codec_config, codec_shapes, model_config, model_shapes
from voxcpm_grpc.attention.reference import ReferenceAttention
from voxcpm_grpc.layers.weights import Weights, check
from voxcpm_grpc.models.qwen3_tts.codec.decoder import Decoder
from voxcpm_grpc.models.qwen3_tts.codec.encoder import Encoder
from voxcpm_grpc.models.qwen3_tts.codec.speaker import SpeakerEncoder
from voxcpm_grpc.models.qwen3_tts.config.codec import read_codec, read_speaker
from voxcpm_grpc.models.qwen3_tts.config.parse import parse_config
from voxcpm_grpc.models.qwen3_tts.footprint import RELEASED_CODEC
from voxcpm_grpc.models.qwen3_tts.load import read_networks

META = torch.device("meta")
TENSORS = {"custom06": 402, "custom17": 404, "base06": 478, "base17": 480, "design": 404}
PARAMETERS = {
    "custom06": 905_788_672,
    "custom17": 1_916_676_352,
    "base06": 914_643_008,
    "base17": 1_928_677_440,
    "design": 1_916_676_352,
}
CODEC_TENSORS, CODEC_PARAMETERS = 496, 114_323_137 + 56_234_304


def blank(shapes: Mapping[str, tuple[int, ...]], file: str, dtype: torch.dtype) -> Weights:
    """A file with tensors of these names and shapes, without values."""
    tensors = {name: torch.empty(shape, dtype=dtype, device=META) for name, shape in shapes.items()}
    return Weights(file, tensors, META, dtype, dtype)


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_tensors_of_a_released_model_are_read(variant):
    content, faults = model_config(VARIANTS[variant], full=True, first_special=151643), list[str]()
    config = parse_config(content, faults)
    assert config and not faults
    shapes = dict(model_shapes(content))
    assert len(shapes) == TENSORS[variant] and sum(map(math.prod, shapes.values())) == PARAMETERS[variant]
    weights = blank(shapes, "model.safetensors", torch.bfloat16)
    read_networks(config, 4096, weights, ReferenceAttention())
    if config.kind == "base":
        speaker = read_speaker(content["speaker_encoder_config"], config.talker.hidden_size, faults)
        assert speaker
        SpeakerEncoder(speaker, weights.scope("speaker_encoder"))
    check(weights)


def test_all_tensors_of_the_released_codec_are_read():
    content, faults = codec_config(VARIANTS["base17"], full=True), list[str]()
    assert read_codec(content, faults) == RELEASED_CODEC and not faults
    shapes = dict(codec_shapes(content))
    weights = blank(shapes, "speech_tokenizer/model.safetensors", torch.float32)
    buffers = sum(math.prod(shape) for name, shape in shapes.items() if name.endswith("initialized"))
    assert len(shapes) == CODEC_TENSORS
    assert sum(map(math.prod, shapes.values())) - CODEC_PARAMETERS in (0, buffers)
    Decoder(RELEASED_CODEC.decoder, weights.scope("decoder"))
    Encoder(RELEASED_CODEC.encoder, RELEASED_CODEC.encoder_valid_num_quantizers, weights.scope("encoder"))
    check(weights)
