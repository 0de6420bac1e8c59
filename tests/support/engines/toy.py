"""The toy family of `toy_family.py`, as hosts without PyTorch know it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from voxcpm_grpc.models import families
from voxcpm_grpc.models.family import Family
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.worker.engine_like import EngineLike
from voxcpm_grpc.worker.main import LoadEngine

TOY = Family(
    name="Toy",
    recognizes=lambda config: config.get("architecture") == "toy",
    kinds=("toy",),
    hashed=(("config.json",),),
    patterns=(),
    settings=frozenset(),
    load="support.engines.toy_family:load_toy",
    footprint="support.engines.toy_family:toy_footprint",
)


def register() -> None:
    """Let this process, one of its own, know the family to its end."""
    if TOY not in families.FAMILIES:
        families.FAMILIES = (*families.FAMILIES, TOY)


def checkpoint(folder: Path, positions: int = 512) -> Path:
    """A checkpoint of the family in a folder."""
    (folder / "config.json").write_text(json.dumps({"architecture": "toy", "positions": positions}))
    return folder


@dataclass(frozen=True)
class LoadToy:
    """Makes the engine of a checkpoint of the family, in any process."""

    folder: Path

    def __call__(self) -> EngineLike:
        register()
        return LoadEngine(self.folder, "toy", EngineSettings(device="cpu", max_slots=4))()
