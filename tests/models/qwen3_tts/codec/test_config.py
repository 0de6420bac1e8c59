"""Checkpoints whose codec cannot be used are refused, with all that is wrong."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.engines.qwen3_codec import CPU, SHALLOW, checkpoint, codec_config

from tools.make_qwen3_checkpoint import VARIANTS
from tools.qwen3_checkpoint_layout import codec_config as written_config
from tools.qwen3_checkpoint_layout import codec_shapes, model_config, model_shapes
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.layers.weights import Weights, check
from voxcpm_grpc.models.qwen3_tts.codec.decoder import Decoder
from voxcpm_grpc.models.qwen3_tts.codec.encoder import Encoder
from voxcpm_grpc.models.qwen3_tts.codec.load import WEIGHTS, load_codec
from voxcpm_grpc.models.qwen3_tts.codec.speaker import SpeakerEncoder
from voxcpm_grpc.models.qwen3_tts.config.codec import read_codec, read_speaker

META = torch.device("meta")


def config(*, full: bool = True) -> dict[str, Any]:
    return json.loads(json.dumps(written_config(VARIANTS[SHALLOW], full=full)))


def faults_of(data: Any) -> list[str]:
    found: list[str] = []
    assert (read_codec(data, found) is None) == bool(found)
    return found


@pytest.mark.parametrize("full", [False, True])
def test_written_configurations_are_read(full):
    assert faults_of(config(full=full)) == []


def remove(*path: str) -> Callable[[dict], object]:
    return lambda data: inner(data, path).pop(path[-1])


def put(*path: str, value: object) -> Callable[[dict], object]:
    return lambda data: inner(data, path).update({path[-1]: value})


def inner(data: dict, path: tuple[str, ...]) -> dict:
    for name in path[:-1]:
        data = data[name]
    return data


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (put("model_type", value="qwen3_tts_tokenizer_25hz"), "'qwen3_tts_tokenizer_25hz'"),
        (remove("decoder_config", "head_dim"), "decoder_config.head_dim is missing"),
        (remove("decoder_config", "codebook_dim"), "decoder_config.codebook_dim is missing"),
        (remove("encoder_config", "head_dim"), "encoder_config.head_dim is missing"),
        (remove("decoder_config"), "decoder_config is missing"),
        (remove("input_sample_rate"), "input_sample_rate is missing"),
        (put("decoder_config", value=[]), "decoder_config is [], expected an object"),
        (put("decoder_config", "sliding_window", value=0), "decoder_config.sliding_window is 0, it must be 1 or more"),
        (put("decoder_config", "sliding_window", value=1), "it must be 2 or more"),
        (put("decoder_config", "latent_dim", value="wide"), "decoder_config.latent_dim is 'wide', expected int"),
        (put("decoder_config", "rms_norm_eps", value=float("nan")), "rms_norm_eps is nan, expected float"),
        (put("decoder_config", "upsample_rates", value=[]), "upsample_rates is [], expected a list of numbers"),
        (put("decoder_config", "upsample_rates", value=[8, 5, 4, 0]), "upsample_rates[3] is 0"),
        (
            put("decoder_config", "upsample_rates", value=[8, 5, 4, 2]),
            "decode_upsample_rate is 1920 and the product of the rates of decoder_config is 1280, they must agree",
        ),
        (
            put("encoder_config", "upsampling_ratios", value=[8, 6, 5]),
            "encode_downsample_rate is 1920 and twice the product of the ratios of encoder_config is 480",
        ),
        (
            put("decode_upsample_rate", value=960),
            "decode_upsample_rate is 960 and the product of the rates of decoder_config is 1920, they must agree",
        ),
        (
            put("output_sample_rate", value=48000),
            "input_sample_rate is 24000 and output_sample_rate is 48000, they must agree",
        ),
        (put("encoder_config", "sampling_rate", value=16000), "input_sample_rate is 24000"),
        (put("encoder_valid_num_quantizers", value=8), "encoder_valid_num_quantizers is 8"),
        (put("encoder_config", "num_quantizers", value=12), "encoder_config.num_quantizers is 12, fewer than"),
        (put("encoder_config", "codebook_size", value=1024), "decoder_config.codebook_size is 2048"),
        (put("decoder_config", "codebook_dim", value=511), "decoder_config.codebook_dim is 511, it must be even"),
        (put("decoder_config", "decoder_dim", value=1000), "1000 cannot be halved 4 times"),
        (put("decoder_config", "num_key_value_heads", value=3), "16 attention heads are no multiple of 3 KV heads"),
        (put("decoder_config", "head_dim", value=63), "decoder_config.head_dim is 63, positions need pairs"),
        (put("decoder_config", "hidden_act", value="gelu"), "decoder_config.hidden_act is 'gelu'"),
        (put("decoder_config", "attention_bias", value=True), "decoder_config.attention_bias is true"),
        (put("encoder_config", "use_causal_conv", value=False), "encoder_config.use_causal_conv is False"),
        (put("encoder_config", "pad_mode", value="reflect"), "encoder_config.pad_mode is 'reflect'"),
        (put("encoder_config", "audio_channels", value=2), "encoder_config.audio_channels is 2"),
        (put("encoder_config", "compress", value=5), "num_filters 64 cannot be divided by compress 5"),
        (put("encoder_config", "codebook_dim", value=128), "vector_quantization_hidden_dimension 256"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(change, fault):
    data = config()
    change(data)
    found = faults_of(data)
    assert fault in found[0]
    assert len(found) == 1 or data["decode_upsample_rate"] != data["encode_downsample_rate"]


def test_all_faults_are_told_at_once():
    data = config()
    for change in (
        remove("decoder_config", "head_dim"),
        remove("decoder_config", "codebook_dim"),
        put("encoder_config", "hidden_act", value="relu"),
        put("input_sample_rate", value="24k"),
    ):
        change(data)
    assert len(faults_of(data)) == 4


@pytest.mark.parametrize("data", [None, [], "qwen"])
def test_what_is_no_object_is_refused(data):
    assert faults_of(data) == ["model_type is None, and only 'qwen3_tts_tokenizer_12hz' is supported, of models whose "
                               "name has 12Hz"]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"enc_dim": 512}, "enc_dim is 512 and the talker's hidden_size 1024"),
        ({"enc_dim": None}, "enc_dim is None, expected int"),
        ({"enc_channels": [512, 512, 512, 512, 1024]}, "the last must be the sum"),
        ({"enc_channels": [512, 256, 512, 512, 1536]}, "all but the last must agree"),
        ({"enc_dilations": [1, 2, 3]}, "need as many entries"),
        ({"enc_res2net_scale": 7}, "512 cannot be divided by enc_res2net_scale 7"),
        ({"enc_kernel_sizes": [4, 3, 3, 3, 1]}, "all must be odd"),
    ],
)
def test_a_speaker_encoder_that_cannot_be_used_is_refused(change, fault):
    found: list[str] = []
    assert read_speaker({"enc_dim": 1024, "sample_rate": 24000}, 1024, found) and not found
    assert read_speaker({"enc_dim": 1024, "sample_rate": 24000, **change}, 1024, found) is None
    assert len(found) == 1 and fault in found[0]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the codec of a tiny checkpoint, which a test may damage."""
    shutil.copytree(checkpoint(SHALLOW) / "speech_tokenizer", tmp_path / "speech_tokenizer")
    return tmp_path


def load(directory: Path) -> None:
    load_codec(directory, codec_config(directory), device=CPU, dtype=torch.float32)


def test_weights_that_do_not_fit_are_refused_with_their_names(copy):
    tensors = load_file(copy / WEIGHTS)
    del tensors["decoder.pre_conv.conv.bias"]
    tensors["decoder.decoder.0.conv.weight"] = tensors["decoder.decoder.0.conv.weight"][:, 1:].contiguous()
    tensors["decoder.other"] = torch.zeros(1)
    save_file(tensors, copy / WEIGHTS)
    with pytest.raises(StartupError) as refused:
        load(copy)
    for part in (
        "1 tensors of speech_tokenizer/model.safetensors are missing: decoder.pre_conv.conv.bias",
        "of the wrong shape or type: decoder.decoder.0.conv.weight is float32 [64, 47, 7] instead of [64, 48, 7]",
        "unknown: decoder.other",
    ):
        assert part in str(refused.value)


def test_a_codec_without_weights_is_refused(copy):
    (copy / WEIGHTS).unlink()
    with pytest.raises(StartupError, match=r"has no speech_tokenizer/model.safetensors; download"):
        load(copy)


def test_a_codec_that_only_decodes_needs_no_weights_of_its_encoder(copy):
    tensors = load_file(copy / WEIGHTS)
    save_file({name: tensor for name, tensor in tensors.items() if name.startswith("decoder.")}, copy / WEIGHTS)
    load(copy)


def test_the_released_layout_is_read_whole():
    shapes = dict(codec_shapes(config()))
    assert (len(shapes), sum(map(math.prod, shapes.values()))) == (496, 170_557_441)
    released = read_codec(config(), [])
    assert released
    weights = on_meta(shapes)
    decoder = Decoder(released.decoder, weights.scope("decoder"))
    encoder = Encoder(released.encoder, 16, weights.scope("encoder"))
    check(weights)
    state = decoder.allocate(1)
    assert (state.rings.numel(), state.kv.numel()) == (135_232, 1_163_264)

    # Values of the device meta cannot be read, as those of a GPU must not be while a graph is recorded.
    codes, slot, spoken = (torch.zeros(*shape, dtype=torch.int64, device=META) for shape in ((3, 16), (3,), (3,)))
    assert decoder.step(codes, slot, state, spoken.bool()).shape == (3, 1920)
    chunks = list(encoder.encode(torch.zeros(50_000, device=META), 10))
    assert [chunk.shape for chunk in chunks] == [(10, 16), (10, 16), (7, 16)]


def test_the_released_speaker_encoder_is_read_whole():
    prefix = "speaker_encoder."
    named = dict(model_shapes(model_config(VARIANTS["base17"], full=True, first_special=151643)))
    shapes = {name: shape for name, shape in named.items() if name.startswith(prefix)}
    assert (len(shapes), sum(map(math.prod, shapes.values()))) == (76, 12_001_088)
    config = read_speaker({"enc_dim": 2048, "sample_rate": 24000}, 2048, [])
    assert config
    weights = on_meta(shapes)
    speaker = SpeakerEncoder(config, weights.scope("speaker_encoder"))
    check(weights)
    with pytest.raises(StopIteration) as ended:
        work = speaker.encode(torch.zeros(50_000, device=META), 100)
        while True:
            next(work)
    assert ended.value.value.shape == (2048,)


def on_meta(shapes: dict[str, tuple[int, ...]]) -> Weights:
    """Weights of these shapes, without memory."""
    tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    return Weights("file", tensors, META, torch.float32, torch.float32)
