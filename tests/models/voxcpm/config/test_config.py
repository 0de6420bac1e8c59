import copy
import json
import math

import pytest
import torch

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.voxcpm.config.config import VoxCPM2Config
from voxcpm_grpc.models.voxcpm.config.parse import parse_config


@pytest.fixture
def content(checkpoint) -> dict:
    return json.loads((checkpoint / "config.json").read_text())


def put(content: dict, path: str, value: object) -> dict:
    """A copy with the value at a dotted path, or without it if that is Ellipsis."""
    content = copy.deepcopy(content)
    *parents, last = path.split(".")
    part = content
    for name in parents:
        part = part[name]
    if value is ...:
        del part[last]
    else:
        part[last] = value
    return content


def test_defaults_are_those_of_the_released_code(content):
    for name in ("audio_vae_config", "max_length", "dtype", "residual_lm_no_rope", "patch_size"):
        del content[name]
    del content["lm_config"]["use_mup"]
    content["feat_dim"] = 64
    content["lm_config"]["max_position_embeddings"] = 8192
    config = parse_config(content)
    assert isinstance(config, VoxCPM2Config)
    assert config.lm_config.use_mup  # the default
    assert (config.max_length, config.patch_size, config.residual_lm_no_rope) == (8192, 4, False)
    assert config.table_dtype == torch.bfloat16
    assert (config.vae.encode_hop, config.vae.decode_hop) == (640, 1920)
    assert config.vae.sr_bin_boundaries == (20000, 30000, 40000)


def test_mup_scales_embeddings_and_branches(content):
    config = parse_config(put(content, "lm_config.use_mup", True))
    assert config.lm_config.embedding_scale == 12
    assert config.base.residual_scale == pytest.approx(1.4 / math.sqrt(3))
    assert config.residual.residual_scale == pytest.approx(1.4 / math.sqrt(2))
    plain = parse_config(content)
    assert (plain.lm_config.embedding_scale, plain.base.residual_scale) == (1, 1)


def test_head_sizes_follow_the_hidden_size_unless_given(content):
    content = put(content, "lm_config.rope_scaling", ...)
    content = put(put(content, "lm_config.kv_channels", ...), "lm_config.num_attention_heads", 2)
    assert parse_config(content).base.head_dim == 28 // 2


def test_long_factors_are_used_only_beyond_the_trained_length(content):
    short = parse_config(content).lm_config.rope(16, 64, torch.float32)
    long = parse_config(put(content, "lm_config.rope_scaling.original_max_position_embeddings", 1024))
    assert not torch.allclose(short.cos, long.lm_config.rope(16, 64, torch.float32).cos)
    plain = parse_config(put(content, "lm_config.rope_scaling", None)).lm_config.rope(16, 64, torch.float32)
    assert torch.allclose(plain.cos[:, 0, 0], torch.arange(64.0).cos(), atol=1e-5)


def test_unknown_keys_are_ignored(content):
    assert parse_config(content | {"transformers_version": "9"}) == parse_config(content)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("lm_config.hidden_size", ..., "lm_config.hidden_size is missing"),
        ("lm_config", [], "lm_config is not an object"),
        ("lm_config.hidden_size", "28", "lm_config.hidden_size is '28', expected int"),
        ("lm_config.hidden_size", 28.5, "expected int"),
        ("lm_config.hidden_size", True, "expected int"),
        ("lm_config.rms_norm_eps", math.nan, "rms_norm_eps is nan"),
        ("lm_config.rope_scaling.short_factor", ["a"] * 8, r"short_factor\[7\] is 'a'"),
        ("audio_vae_config.encoder_rates", [2, 0], "must be 1 or more"),
        ("lm_config.num_key_value_heads", 0, "num_key_value_heads is 0, it must be 1 or more"),
        ("lm_config.num_key_value_heads", 3, "4 attention heads are no multiple of 3 KV heads"),
        ("lm_config.kv_channels", 15, "head size 15 is odd"),
        ("lm_config.kv_channels", None, "short_factor has 8 entries, lm_config needs 3"),
        ("encoder_config.kv_channels", 8, "short_factor has 8 entries, encoder_config needs 4"),
        ("dit_config.kv_channels", None, "dit_config: hidden size 20 is no multiple of 8 heads"),
        ("lm_config.rope_scaling.long_factor", [1.0] * 7, "long_factor has 7 entries"),
        ("lm_config.rope_scaling.short_factor", [0.0] * 8, "must be positive"),
        ("lm_config.rope_scaling.original_max_position_embeddings", 1, "is 1, it must be 2 or more"),
        ("max_length", 4096, "max_length 4096 exceeds"),
        ("feat_dim", 16, "feat_dim is 16 and audio_vae_config.latent_dim is 8"),
        ("audio_vae_config.decoder_dim", 96, "decoder_dim 96 cannot be halved 6 times"),
        ("audio_vae_config.decoder_rates", [], "decoder_rates is empty"),
        ("audio_vae_config.use_noise_block", True, "use_noise_block is true: .* no seed could repeat"),
        ("audio_vae_config.cond_type", "concat", "cond_type is 'concat', which needs cond_out_layer"),
        ("audio_vae_config.cond_type", "film", "cond_type is 'film', expected scale_bias, "),
        ("dtype", "int8", "dtype is 'int8', expected one of"),
    ],
)
def test_an_unusable_value_is_refused_with_its_reason(content, path, value, message):
    with pytest.raises(StartupError, match=message):
        parse_config(put(content, path, value))


def test_all_faults_are_reported_together(content):
    for path, value in (
        ("encoder_config.ffn_dim", "36"),
        ("patch_size", 0),
        ("dtype", "int8"),
        ("lm_config.num_key_value_heads", 3),
        ("dit_config.kv_channels", None),
        ("feat_dim", 16),
        ("audio_vae_config.use_noise_block", True),
        ("lm_config.rms_norm_eps", ...),
    ):
        content = put(content, path, value)
    with pytest.raises(StartupError) as error:
        parse_config(content)
    for part in (
        "encoder_config.ffn_dim is '36'",
        "patch_size is 0",
        "dtype is 'int8'",
        "4 attention heads are no multiple of 3 KV heads",
        "dit_config: hidden size 20 is no multiple of 8 heads",
        "feat_dim is 16",
        "use_noise_block is true",
        "rms_norm_eps is missing",
    ):
        assert part in str(error.value)


def test_a_faulty_value_causes_no_second_fault(content):
    for value in ("28", 0, ...):
        with pytest.raises(StartupError) as error:
            parse_config(put(content, "lm_config.num_attention_heads", value))
        assert str(error.value).count(";") == 0
        assert "num_attention_heads is" in str(error.value)


def test_a_whole_number_may_be_written_as_a_float(content):
    floats = put(put(content, "lm_config.hidden_size", 28.0), "audio_vae_config.decoder_rates", [8.0, 6, 5, 2, 2, 2])
    assert parse_config(floats) == parse_config(content)
