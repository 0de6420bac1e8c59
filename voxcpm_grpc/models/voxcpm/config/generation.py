"""The defaults of sampling that a checkpoint names in generation_config.json. The releases have no such file."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

from voxcpm_grpc.errors import StartupError

FILE = "generation_config.json"
RANGES = {"cfg_value": (0, 10), "temperature": (0, 2)}


@dataclass(frozen=True, slots=True)
class Generation:
    """The defaults of sampling. Those here are of the official package."""

    cfg_value: float = 2.0
    temperature: float = 1.0


OFFICIAL = Generation()


def read_generation(directory: Path) -> Generation:
    """The defaults of the checkpoint in `directory`. Other keys of its file are left alone. Raises StartupError."""
    try:
        data: object = json.loads((directory / FILE).read_text("utf-8"))
    except FileNotFoundError:
        return OFFICIAL
    except (OSError, ValueError) as error:
        raise StartupError(f"{FILE} of the model cannot be read: {error}; correct it or remove it") from None
    if not isinstance(data, dict):
        raise StartupError(f"{FILE} of the model is not an object; correct it or remove it")
    values = {field.name: data[field.name] for field in fields(Generation) if field.name in data}
    for name, value in values.items():
        low, high = RANGES[name]
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            raise StartupError(f"{FILE}: {name} is {value!r}, expected a number from {low} to {high}; correct it")
    return Generation(**{name: float(value) for name, value in values.items()})
