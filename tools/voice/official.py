"""The network modules of two packages: of `voxcpm`, which the recipe trains, and of `kokoro`, its teacher.

The engine never imports them. A package's `__init__` would import its audio and text front ends with their many
requirements, so it is not run. Needs voxcpm==2.0.3 (`pip install --no-deps`), torch, pydantic and einops.
"""

import importlib
import importlib.util
import sys
import types
from typing import Any

VERSIONS = {"voxcpm": "2.0.3", "kokoro": "0.9.4"}


def _add_package(package: str) -> None:
    if package in sys.modules:
        return
    spec = importlib.util.find_spec(package)
    if spec is None or spec.submodule_search_locations is None:
        wanted = f"{package}=={VERSIONS[package]}"
        raise ModuleNotFoundError(f"the official package is missing: pip install --no-deps {wanted}")
    empty = types.ModuleType(package)
    empty.__path__ = list(spec.submodule_search_locations)
    empty.__spec__ = spec
    sys.modules[package] = empty


def module(name: str, package: str = "voxcpm") -> Any:
    """A module of an official package by its dotted name below the package."""
    _add_package(package)
    return importlib.import_module(f"{package}.{name}")
