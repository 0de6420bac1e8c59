"""The sizes of the bundled voice as config.json, and of a small model of the same structure for tests."""

import math
from typing import Any

from tools.voice.dataset import RATE

PATCH = 4  # latent frames of one step of the language model
LATENT = 32
HEAD = 32  # size of an attention head; the official model requires the same in every stack


def codec_config(toy: bool = False) -> dict[str, Any]:
    """`audio_vae_config`: 25 latents a second at 24 kHz in and out, no conditioning on the sample rate."""
    return {
        "encoder_dim": 8 if toy else 24,
        "encoder_rates": [3, 5, 8, 8],
        "latent_dim": LATENT,
        "decoder_dim": 128 if toy else 512,
        "decoder_rates": [8, 8, 5, 3],
        "depthwise": True,
        "sample_rate": RATE,
        "out_sample_rate": RATE,
        "use_noise_block": False,
        "sr_bin_boundaries": None,
        "cond_type": "scale_bias",
        "cond_dim": 128,
        "cond_out_layer": False,
    }


def patch_samples(codec: dict[str, Any]) -> int:
    """The samples of one patch."""
    return PATCH * math.prod(codec["encoder_rates"])


def model_config(vocabulary: int, toy: bool = False) -> dict[str, Any]:
    """config.json. vocabulary: the number of tokens."""
    positions = 2048
    stack = ("hidden_dim", "ffn_dim", "num_heads", "num_layers", "kv_channels")
    return {
        "architecture": "voxcpm2",
        "lm_config": {
            "bos_token_id": 1,
            "eos_token_id": 2,
            "hidden_size": 160 if toy else 320,
            "intermediate_size": 320 if toy else 672,
            "max_position_embeddings": positions,
            "num_attention_heads": 4 if toy else 8,
            "num_hidden_layers": 4 if toy else 6,
            "num_key_value_heads": 4,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000,
            "rope_scaling": {
                "type": "longrope",
                "long_factor": [1.0] * (HEAD // 2),
                "short_factor": [1.0] * (HEAD // 2),
                "original_max_position_embeddings": positions,
            },
            "vocab_size": vocabulary,
            "use_mup": False,
            "scale_emb": 12,
            "dim_model_base": 256,
            "scale_depth": 1.4,
            "kv_channels": HEAD,
        },
        "patch_size": PATCH,
        "feat_dim": LATENT,
        "residual_lm_num_layers": 1 if toy else 2,
        "residual_lm_no_rope": True,
        "scalar_quantization_latent_dim": 64 if toy else 128,
        "scalar_quantization_scale": 9,
        "encoder_config": dict(zip(stack, (96, 192, 4, 1, HEAD) if toy else (192, 384, 4, 2, HEAD), strict=True)),
        "dit_config": {
            **dict(zip(stack, (128, 256, 4, 2, HEAD) if toy else (256, 640, 8, 4, HEAD), strict=True)),
            "mean_mode": False,
            "cfm_config": {"sigma_min": 1e-6, "solver": "euler", "t_scheduler": "log-norm", "inference_cfg_rate": 2.0},
        },
        "audio_vae_config": codec_config(toy),
        "max_length": positions,
        "device": "cpu",
        "dtype": "float32",
    }
