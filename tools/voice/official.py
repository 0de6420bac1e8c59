"""The network modules of the official `voxcpm` package, which the recipe trains. The engine never imports it.

The package's `__init__` would import its audio and text front ends with their many requirements, so it is not run.
Needs voxcpm==2.0.3 (`pip install --no-deps`), torch, pydantic and einops.
"""

import importlib
import importlib.util
import sys
import types
from typing import Any


def _add_package() -> None:
    if "voxcpm" in sys.modules:
        return
    spec = importlib.util.find_spec("voxcpm")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("the official package is missing: pip install --no-deps voxcpm==2.0.3")
    package = types.ModuleType("voxcpm")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    sys.modules["voxcpm"] = package


def module(name: str) -> Any:
    """A module of the official package by its dotted name below `voxcpm`."""
    _add_package()
    return importlib.import_module(f"voxcpm.{name}")
