"""The family VoxCPM, as hosts without PyTorch know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from voxcpm_grpc.models.family import Family

MODEL_FILES = ("model.safetensors", "pytorch_model.bin", "pytorch_model.pth")
"""The names of the file with the weights of the networks, in the order of preference."""

CODEC_FILES = ("audiovae.safetensors", "audiovae.pth")
"""The names of the file with the weights of the codec, in the order of preference."""

ARCHITECTURES = ("voxcpm", "voxcpm2")
FIRST_KEY = "lm_config"  # config.json of the first release names no architecture, but has this key


def architecture_of(config: Mapping[str, Any]) -> str:
    """The architecture that a config.json names, in lower case."""
    return str(config.get("architecture", ARCHITECTURES[0])).lower()


def _recognizes(config: Mapping[str, Any]) -> bool:
    return architecture_of(config) in ARCHITECTURES if "architecture" in config else FIRST_KEY in config


VOXCPM = Family(
    name="VoxCPM",
    recognizes=_recognizes,
    kinds=ARCHITECTURES,
    hashed=(("config.json",), ("tokenizer.json",), MODEL_FILES, CODEC_FILES),
    patterns=(
        "*.safetensors",
        "pytorch_model.bin",
        "*.pth",
        "tokenizer*.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "generation_config.json",
    ),
    settings=frozenset(
        (
            *("codec_dtype", "quantization", "attention", "timesteps", "persistent", "compile", "recorded_noise"),
            *("merge_lora", "loras", "max_loras", "max_lora_rank", "lora_targets"),
        )
    ),
    load="voxcpm_grpc.models.voxcpm.load:load_voxcpm",
    footprint="voxcpm_grpc.models.voxcpm.footprint:voxcpm_footprint",
    prepare="voxcpm_grpc.models.voxcpm.backend:import_fast",
)
