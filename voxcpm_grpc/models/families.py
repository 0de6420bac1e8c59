"""The model families, and the one of a checkpoint. No PyTorch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from voxcpm_grpc import other_systems
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.family import Family
from voxcpm_grpc.models.qwen3_tts.family import QWEN3_TTS
from voxcpm_grpc.models.voxcpm.family import VOXCPM

FAMILIES: tuple[Family, ...] = (VOXCPM, QWEN3_TTS)


def family_of(directory: Path) -> tuple[Family, dict[str, Any]]:
    """The family of a checkpoint directory, and its config.json. Raises StartupError, with the remedy."""
    path = directory / "config.json"
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise StartupError(
            f"{path} cannot be read ({error.strerror}); name a directory that holds a checkpoint"
        ) from error
    except ValueError as error:
        raise StartupError(f"{path} is not valid JSON ({error}); download the checkpoint again") from error
    if not isinstance(content, dict):
        raise StartupError(f"{path} holds no JSON object; download the checkpoint again")
    config = cast("dict[str, Any]", content)
    found = recognizing(config)
    if not found and "architecture" not in config:
        other_systems.refuse_directory(str(directory), directory)
    if len(found) != 1:
        raise StartupError(_refusal(path, config, found))
    return found[0], config


def recognizing(config: Mapping[str, Any]) -> list[Family]:
    """The families that recognise a config.json."""
    return [family for family in FAMILIES if family.recognizes(config)]


def likely_family(directory: Path) -> Family:
    """The only family that recognises a directory, or the one whose files it has the most of."""
    found = recognizing(other_systems.config_of(directory))
    if len(found) == 1:
        return found[0]
    return min(FAMILIES, key=lambda family: len(family.missing(lambda name: (directory / name).is_file())))


def _refusal(path: Path, config: Mapping[str, Any], found: list[Family]) -> str:
    if found:
        names = " and ".join(family.name for family in found)
        return f"{path} fits {len(found)} model families, {names}; let it name the architecture of one of them"
    known = ", ".join(sorted(kind for family in FAMILIES for kind in family.kinds))
    if "architecture" in config:
        return f"{path} names the architecture {str(config['architecture']).lower()!r}; this server supports {known}"
    keys = ", ".join(ascii(key[:40])[1:-1] for key in sorted(config)[:8])
    return (
        f"{path} names no architecture, and no model family recognises it by its keys, {keys or 'of which it has none'}"
        f"; this server supports {known}"
    )
