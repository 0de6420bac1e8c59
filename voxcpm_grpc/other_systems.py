"""Recognises models of other systems, so that their refusal says what they are."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, cast

from voxcpm_grpc.errors import StartupError

SERVED = (
    "this server serves VoxCPM2, VoxCPM1.5, VoxCPM-0.5B and Qwen3-TTS (12 Hz): name one of them, "
    "such as openbmb/VoxCPM2"
)
OWN = "voxcpm"  # the architecture of all models that are served starts so
OWN_KEY = "lm_config"  # config.json of the first release names no architecture, but has this key
TYPES = {  # these are types of transformers, with the names that people give these systems
    "bark": "Bark",
    "chatterbox": "Chatterbox",
    "csm": "CSM",
    "dia": "Dia",
    "dual_ar": "Fish Speech",
    "fish_qwen3_omni": "Fish Speech",
    "higgs_audio": "Higgs Audio",
    "kyutai_speech_to_text": "Kyutai STT",
    "parler_tts": "Parler-TTS",
    "qwen2_5_omni": "Qwen2.5-Omni",
    "qwen3_omni_moe": "Qwen3-Omni",
    "speecht5": "SpeechT5",
    "vibevoice": "VibeVoice",
    "vits": "VITS",
    "whisper": "Whisper",
    "xtts": "XTTS",
}
FILES = (  # a folder without a config.json of ours is known by these files
    ("*.gguf", "a model in GGUF format, for llama.cpp"),
    ("model_index.json", "a pipeline of Diffusers"),
    ("cosyvoice*.yaml", "a CosyVoice model"),
    ("lora_config.json", "a LoRA adapter of VoxCPM, which --lora NAME=DIRECTORY adds to its model"),
    ("lora_weights.*", "a LoRA adapter of VoxCPM, which --lora NAME=DIRECTORY adds to its model"),
    ("adapter_config.json", "a LoRA adapter in the format of PEFT"),
    ("*.nemo", "a model of NeMo"),
    ("*.onnx", "a model in ONNX format"),
    ("config.y*ml", "a model of another system, with a config in YAML"),
)


def refuse(source: str, config: Mapping[str, Any], names: Collection[str]) -> None:
    """Raise StartupError for a model of another system, which names the system.

    source: the model, for the message
    config: the content of its config.json; empty if it has none
    names: its files
    """
    if other := _kind(config, names):
        raise StartupError(f"{source} is {other}; {SERVED}")


def refuse_directory(source: str, directory: Path) -> None:
    """Do the same as `refuse`, for the model in a directory. One that cannot be read is left to its loader."""
    try:
        names = [path.name for path in directory.iterdir()]
    except OSError:
        return
    refuse(source, config_of(directory), names)


def config_of(directory: Path) -> Mapping[str, Any]:
    """The config.json of a directory; empty if it cannot be read as a JSON object."""
    try:
        return parsed((directory / "config.json").read_bytes())
    except OSError:
        return {}


def parsed(content: bytes) -> Mapping[str, Any]:
    """A config.json; empty if it is not a JSON object."""
    try:
        found = json.loads(content) if content else None
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _kind(config: Mapping[str, Any], names: Collection[str]) -> str:
    """A model of another system in words; empty for one of ours, and if nothing tells."""
    architecture = config.get("architecture")
    if OWN_KEY in config or str(architecture).lower().startswith(OWN):
        return ""
    if isinstance(architecture, str):
        return f"a model of another system, whose config.json names the architecture {architecture[:80]!r}"
    if isinstance(kind := config.get("model_type"), str):
        return f"{_named(kind, config)} (model_type {_shown(kind)})"
    if "_diffusers_version" in config or isinstance(config.get("_class_name"), str):
        return f"a part of a Diffusers pipeline (_class_name {_shown(config.get('_class_name'))})"
    if classes := _classes(config):
        return f"a model of another system (architectures {classes})"
    if isinstance(model := config.get("model"), str) and "audio" in config:
        return f"a Coqui TTS model (model {_shown(model)})"
    if "istftnet" in config:
        return "a Kokoro model"
    found = (kind for pattern, kind in FILES if any(fnmatch(Path(name).name.lower(), pattern) for name in names))
    return next(found, "")


def _named(kind: str, config: Mapping[str, Any]) -> str:
    if name := TYPES.get(kind):
        return f"a {name} model"
    classes = _classes(config)
    return f"a model of another system, {classes}," if classes else "a model of another system"


def _classes(config: Mapping[str, Any]) -> str:
    listed = config.get("architectures")
    names = [name for name in cast("list[object]", listed) if isinstance(name, str)] if isinstance(listed, list) else []
    return ", ".join(map(_shown, names[:3]))


def _shown(value: object) -> str:
    """A value of a config on one line, not too long."""
    return ascii(str(value)[:80])[1:-1]
