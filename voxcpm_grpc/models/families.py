"""Selects the model family of a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from voxcpm_grpc import other_systems
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.models.base import Footprint, LoadOptions, SpeechModel
from voxcpm_grpc.models.voxcpm.backend import import_fast as import_fast
from voxcpm_grpc.models.voxcpm.footprint import voxcpm_footprint
from voxcpm_grpc.models.voxcpm.load import load_voxcpm

FAMILIES: dict[str, Callable[[Path, Any, LoadOptions], SpeechModel]] = {"voxcpm": load_voxcpm, "voxcpm2": load_voxcpm}
FOOTPRINTS: dict[str, Callable[[Any, LoadOptions], Footprint]] = {
    "voxcpm": voxcpm_footprint,
    "voxcpm2": voxcpm_footprint,
}


def load_model(directory: Path, options: LoadOptions) -> SpeechModel:
    """The model of a checkpoint directory, of the family that its config.json names as `architecture`.

    Raises StartupError, with the remedy, if a file is missing, broken or does not fit.
    """
    architecture, content = _read_config(directory)
    return FAMILIES[architecture](directory, content, options)


def measure_model(directory: Path, options: LoadOptions) -> Footprint:
    """The memory that the model of a directory takes on a GPU. Reads config.json alone. Raises StartupError."""
    architecture, content = _read_config(directory)
    return FOOTPRINTS[architecture](content, options)


def _read_config(directory: Path) -> tuple[str, Any]:
    """The architecture of a checkpoint, and its parsed config.json with this architecture in lower case."""
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
    if "architecture" not in content:
        other_systems.refuse_directory(str(directory), directory)
    architecture = str(content.get("architecture", "voxcpm")).lower()  # the first release had no such key
    if architecture not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise StartupError(f"{path} names the architecture {architecture!r}; this server supports {known}")
    return architecture, content | {"architecture": architecture}
