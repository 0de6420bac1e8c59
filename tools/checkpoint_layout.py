"""The configurations of random checkpoints, and the names and shapes of their tensors, for make_checkpoint.py."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Shapes = Iterator[tuple[str, tuple[int, ...]]]
Stack = tuple[int, int, int, int]  # hidden size, ffn, heads, layers

VOXCPM2, VOXCPM15, VOXCPM05 = "VoxCPM2", "VoxCPM1.5", "VoxCPM-0.5B"
MODELS = (VOXCPM2, VOXCPM15, VOXCPM05)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimensions:
    """The sizes of a checkpoint."""

    lm: Stack
    residual: int  # layers
    encoder: Stack
    dit: Stack
    kv_heads: int = 2
    head: int
    code: int  # channels of the FSQ
    feat: int = 64
    vocab: int = 73448
    positions: int = 32768
    length: int = 8192  # of a sequence
    factors: tuple[float, float]  # the largest RoPE divisors: long, short
    vae: dict[str, Any]


# Tiny models have the released rates and patch size. All their other dimensions differ from each other where they can,
# so that tests find a transposed or swapped tensor.
TINY = {"feat": 8, "vocab": 608, "positions": 2048, "length": 2048, "code": 12, "head": 16, "factors": (7, 5)}
RATES2 = {"encoder_rates": [2, 5, 8, 8], "decoder_rates": [8, 6, 5, 2, 2, 2]}
RATES15 = {"encoder_rates": [2, 3, 6, 7, 7], "decoder_rates": [7, 7, 6, 3, 2], "sample_rate": 44100}
RATES05 = {"encoder_rates": [2, 5, 8, 8], "decoder_rates": [8, 8, 5, 2], "sample_rate": 16000}
FULL_SIZE = {
    VOXCPM2: Dimensions(
        lm=(2048, 6144, 16, 28),
        residual=8,
        encoder=(1024, 4096, 16, 12),
        dit=(1024, 4096, 16, 12),
        head=128,
        code=512,
        factors=(31, 31),
        vae={"encoder_dim": 128, "latent_dim": 64, "decoder_dim": 2048, **RATES2},
    ),
    VOXCPM15: Dimensions(
        lm=(1024, 4096, 16, 24),
        residual=8,
        encoder=(1024, 4096, 16, 8),
        dit=(1024, 4096, 16, 8),
        head=64,
        code=256,
        factors=(50, 50),
        vae={"encoder_dim": 64, "latent_dim": 64, "decoder_dim": 2048, **RATES15},
    ),
    VOXCPM05: Dimensions(
        lm=(1024, 4096, 16, 24),
        residual=6,
        encoder=(1024, 4096, 16, 4),
        dit=(1024, 4096, 16, 4),
        head=64,
        code=256,
        length=4096,
        factors=(50, 50),
        vae={"encoder_dim": 128, "latent_dim": 64, "decoder_dim": 1536, **RATES05},
    ),
}
SMALL = {
    VOXCPM2: Dimensions(
        lm=(28, 44, 4, 3),
        residual=2,
        encoder=(24, 36, 6, 1),
        dit=(20, 52, 8, 2),
        vae={"encoder_dim": 2, "latent_dim": 8, "decoder_dim": 64, **RATES2},
        **TINY,
    ),
    # In the first generation the heads of a stack divide its hidden size, so sizes are products of 16.
    VOXCPM15: Dimensions(
        lm=(32, 44, 2, 3),
        residual=2,
        encoder=(64, 20, 4, 1),
        dit=(32, 36, 2, 2),
        vae={"encoder_dim": 1, "latent_dim": 8, "decoder_dim": 32, **RATES15},
        **TINY,
    ),
    VOXCPM05: Dimensions(
        lm=(32, 36, 2, 2),
        residual=3,
        encoder=(16, 44, 1, 2),
        dit=(48, 20, 3, 1),
        kv_heads=1,
        vae={"encoder_dim": 2, "latent_dim": 8, "decoder_dim": 16, **RATES05},
        **TINY,
    ),
}
# What tells the audio decoder of VoxCPM2 its sample rate.
CONDITIONED_DECODER = {
    "out_sample_rate": 48000,
    "use_noise_block": False,
    "sr_bin_boundaries": [20000, 30000, 40000],
    "cond_type": "scale_bias",
    "cond_dim": 128,
    "cond_out_layer": False,
}


def ramp(pairs: int, top: float) -> list[float]:
    """RoPE frequency divisors, one per pair of head dimensions: near 1 for fast pairs, near `top` for slow ones."""
    width = pairs / 12
    return [1 + (top - 1) / (1 + math.exp((pairs / 2 - 0.5 - j) / width)) for j in range(pairs)]


def config(full: bool, dtype: str, model: str = VOXCPM2) -> dict:
    """config.json of a model of MODELS: in the released dimensions, or in tiny ones."""
    d, second = (FULL_SIZE if full else SMALL)[model], model == VOXCPM2
    head = {"kv_channels": d.head} if second else {}

    def local(stack: Stack) -> dict[str, int]:
        return dict(zip(("hidden_dim", "ffn_dim", "num_heads", "num_layers"), stack, strict=True)) | head

    made = {
        "architecture": "voxcpm2" if second else "voxcpm",
        "lm_config": _lm_config(d) | head,
        "patch_size": 2 if model == VOXCPM05 else 4,
        "feat_dim": d.feat,
        "residual_lm_num_layers": d.residual,
        **({"residual_lm_no_rope": True} if second else {}),
        "scalar_quantization_latent_dim": d.code,
        "scalar_quantization_scale": 9,
        "encoder_config": local(d.encoder),
        "dit_config": {
            **local(d.dit),
            **({"mean_mode": False} if second else {}),
            "cfm_config": {"sigma_min": 1e-6, "solver": "euler", "t_scheduler": "log-norm", "inference_cfg_rate": 2.0},
        },
        "audio_vae_config": _vae_config(d) | (CONDITIONED_DECODER if second else {}),
        "max_length": d.length,
        "device": "cuda" if full else "cpu",
        "dtype": dtype,
    }
    if model == VOXCPM05:  # the oldest files name no architecture
        del made["architecture"]
    return made


def _lm_config(d: Dimensions) -> dict:
    """The part of config.json about the language model."""
    long, short = (ramp(d.head // 2, top) for top in d.factors)
    hidden, ffn, heads, layers = d.lm
    return {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "max_position_embeddings": d.positions,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": d.kv_heads,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000,
        "rope_scaling": {
            "type": "longrope",
            "long_factor": long,
            "short_factor": short,
            "original_max_position_embeddings": d.positions,
        },
        "vocab_size": d.vocab,
        "use_mup": False,
        "scale_emb": 12,
        "dim_model_base": 256,
        "scale_depth": 1.4,
    }


def _vae_config(d: Dimensions) -> dict:
    """The part of config.json about the audio codec, without what conditions its decoder."""
    return {
        "encoder_dim": d.vae["encoder_dim"],
        "encoder_rates": d.vae["encoder_rates"],
        "latent_dim": d.vae["latent_dim"],
        "decoder_dim": d.vae["decoder_dim"],
        "decoder_rates": d.vae["decoder_rates"],
        "depthwise": True,
        "sample_rate": d.vae.get("sample_rate", 16000),
    }


def stack_shapes(prefix: str, hidden: int, ffn: int, heads: int, layers: int, lm: dict) -> Shapes:
    head = lm.get("kv_channels") or lm["hidden_size"] // lm["num_attention_heads"]
    query, kv = heads * head, lm["num_key_value_heads"] * head
    for i in range(layers):
        layer = f"{prefix}.layers.{i}"
        yield f"{layer}.self_attn.q_proj.weight", (query, hidden)
        yield f"{layer}.self_attn.k_proj.weight", (kv, hidden)
        yield f"{layer}.self_attn.v_proj.weight", (kv, hidden)
        yield f"{layer}.self_attn.o_proj.weight", (hidden, query)
        yield f"{layer}.mlp.gate_proj.weight", (ffn, hidden)
        yield f"{layer}.mlp.up_proj.weight", (ffn, hidden)
        yield f"{layer}.mlp.down_proj.weight", (hidden, ffn)
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
    yield f"{prefix}.norm.weight", (hidden,)


def model_shapes(c: dict) -> Shapes:
    """The names and shapes of model.safetensors."""
    lm, enc, dit = c["lm_config"], c["encoder_config"], c["dit_config"]
    h, e, d, feat, code = (
        lm["hidden_size"],
        enc["hidden_dim"],
        dit["hidden_dim"],
        c["feat_dim"],
        c["scalar_quantization_latent_dim"],
    )
    yield "base_lm.embed_tokens.weight", (lm["vocab_size"], h)
    ffn, heads = lm["intermediate_size"], lm["num_attention_heads"]
    yield from stack_shapes("base_lm", h, ffn, heads, lm["num_hidden_layers"], lm)
    yield from stack_shapes("residual_lm", h, ffn, heads, c["residual_lm_num_layers"], lm)
    yield from stack_shapes("feat_encoder.encoder", e, enc["ffn_dim"], enc["num_heads"], enc["num_layers"], lm)
    estimator = "feat_decoder.estimator"
    yield from stack_shapes(f"{estimator}.decoder", d, dit["ffn_dim"], dit["num_heads"], dit["num_layers"], lm)
    yield "feat_encoder.special_token", (1, 1, 1, e)
    linears = {
        "feat_encoder.in_proj": (e, feat),
        f"{estimator}.in_proj": (d, feat),
        f"{estimator}.cond_proj": (d, feat),
        f"{estimator}.out_proj": (feat, d),
        f"{estimator}.time_mlp.linear_1": (d, d),
        f"{estimator}.time_mlp.linear_2": (d, d),
        f"{estimator}.delta_time_mlp.linear_1": (d, d),
        f"{estimator}.delta_time_mlp.linear_2": (d, d),
        "fsq_layer.in_proj": (code, h),
        "fsq_layer.out_proj": (h, code),
        "enc_to_lm_proj": (h, e),
        "lm_to_dit_proj": (d, h),
        "res_to_dit_proj": (d, h),
        **({"fusion_concat_proj": (h, 2 * h)} if c.get("architecture") == "voxcpm2" else {}),
        "stop_proj": (h, h),
    }
    for name, shape in linears.items():
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]
    yield "stop_head.weight", (2, h)


def conv_shapes(name: str, v: tuple[int, int, int], bias: int | None = None) -> Shapes:
    yield f"{name}.weight_v", v
    yield f"{name}.weight_g", (v[0], 1, 1)
    yield f"{name}.bias", (v[0] if bias is None else bias,)


def residual_unit_shapes(name: str, channels: int) -> Shapes:
    yield f"{name}.block.0.alpha", (1, channels, 1)
    yield from conv_shapes(f"{name}.block.1", (channels, 1, 7))
    yield f"{name}.block.2.alpha", (1, channels, 1)
    yield from conv_shapes(f"{name}.block.3", (channels, channels, 1))


def vae_shapes(c: dict) -> Shapes:
    """The names and shapes of the AudioVAE file, without the integers of `decoder.sr_bin_boundaries`."""
    channels, latent = c["encoder_dim"], c["latent_dim"]
    yield from conv_shapes("encoder.block.0", (channels, 1, 7))
    for i, stride in enumerate(c["encoder_rates"]):
        block = f"encoder.block.{1 + i}.block"
        for j in range(3):
            yield from residual_unit_shapes(f"{block}.{j}", channels)
        yield f"{block}.3.alpha", (1, channels, 1)
        yield from conv_shapes(f"{block}.4", (2 * channels, channels, 2 * stride))
        channels *= 2
    yield from conv_shapes("encoder.fc_mu", (latent, channels, 3))
    yield from conv_shapes("encoder.fc_logvar", (latent, channels, 3))

    rates, buckets = c["decoder_rates"], len(c.get("sr_bin_boundaries") or ()) + 1
    yield from conv_shapes("decoder.model.0", (latent, 1, 7))
    yield from conv_shapes("decoder.model.1", (c["decoder_dim"], latent, 1))
    for i, stride in enumerate(rates):
        wide, narrow = c["decoder_dim"] >> i, c["decoder_dim"] >> (i + 1)
        block = f"decoder.model.{2 + i}.block"
        yield f"{block}.0.alpha", (1, wide, 1)
        yield from conv_shapes(f"{block}.1", (wide, narrow, 2 * stride), bias=narrow)  # transposed: [in, out, k]
        for j in range(2, 5):
            yield from residual_unit_shapes(f"{block}.{j}", narrow)
        if buckets > 1:
            yield f"decoder.sr_cond_model.{2 + i}.scale_embed.weight", (buckets, wide)
            yield f"decoder.sr_cond_model.{2 + i}.bias_embed.weight", (buckets, wide)
    last = c["decoder_dim"] >> len(rates)
    yield f"decoder.model.{2 + len(rates)}.alpha", (1, last, 1)
    yield from conv_shapes(f"decoder.model.{3 + len(rates)}", (1, last, 7))
