"""Loads and measures models, whose families are imported here."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from voxcpm_grpc.models import families
from voxcpm_grpc.models.base import LoadOptions, SpeechModel
from voxcpm_grpc.models.footprint import Footprint


def load_model(directory: Path, options: LoadOptions) -> SpeechModel:
    """The model of a checkpoint directory, of the family that recognises its config.json.

    Raises StartupError, with the remedy, if a file is missing, broken or does not fit.
    """
    family, config = families.family_of(directory)
    return _imported(family.load)(directory, config, options)


def measure_model(directory: Path, options: LoadOptions) -> Footprint:
    """The memory that the model of a directory takes on a GPU. Reads config.json alone. Raises StartupError."""
    family, config = families.family_of(directory)
    return _imported(family.footprint)(config, options)


def prepare_all() -> None:
    """Import early what models of any family need. Uses no device."""
    for family in families.FAMILIES:
        if family.prepare:
            _imported(family.prepare)()


def _imported(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)
