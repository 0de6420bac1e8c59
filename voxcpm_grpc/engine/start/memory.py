"""The GPU memory of an engine, computed before it is started and without a GPU.

Weights, state of the slots and KV cache are exact: they follow from the shapes in config.json. The working memory of
steps, CUDA graphs and libraries is an estimate from measurements of whole engines (docs/gpus.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from voxcpm_grpc.models.base import AdapterOptions, LoadOptions
from voxcpm_grpc.models.footprint import Footprint
from voxcpm_grpc.models.loading import measure_model


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """The memory of an engine of so many slots, in bytes."""

    slots: int
    page_size: int
    footprint: Footprint
    wanted_positions: int  # positions of the KV cache: all slots at full length, or engine.kv_positions

    @property
    def weights(self) -> int:
        return self.footprint.weights + self.footprint.codec + self.footprint.single_stream

    @property
    def adapters(self) -> int:
        return self.footprint.adapters

    @property
    def state(self) -> int:
        return (self.slots + 1) * self.footprint.slot  # one slot is scratch

    @property
    def working(self) -> int:
        return self.footprint.working

    @property
    def kv_cache(self) -> int:
        return self.wanted_positions * self.footprint.layout.bytes_per_position

    @property
    def total(self) -> int:
        return self.weights + self.adapters + self.state + self.working + self.kv_cache

    def positions_on(self, gpu: int, utilization: float) -> int:
        """The positions of the KV cache on a GPU of so many bytes; 0 if a request of full length does not fit."""
        budget = int(gpu * utilization) - (self.total - self.kv_cache)
        page = self.footprint.layout.bytes_per_position * self.page_size
        positions = min(budget // page * self.page_size, self.wanted_positions)
        least = min(self.footprint.positions, self.wanted_positions)
        return positions if positions >= least else 0


def engine_memory(
    directory: Path,
    slots: int,
    *,
    dtype: str = "bfloat16",
    quantization: str = "none",
    max_model_len: int | None = None,
    kv_positions: int | None = None,
    page_size: int = 16,
    adapters: AdapterOptions | None = None,
    persistent: bool = True,
) -> EngineMemory:
    """The memory of an engine with the model of a directory, of which config.json is read. Raises StartupError.

    dtype: float32 or bfloat16; quantization: none or fp8. The other arguments are those of the settings of an engine.
    """
    options = LoadOptions(
        device=torch.device("meta"),
        dtype=getattr(torch, dtype),
        quantization=quantization,
        max_model_len=max_model_len,
        max_slots=slots,
        adapters=adapters,
        persistent=persistent,
    )
    footprint = measure_model(directory, options)
    wanted = kv_positions or slots * footprint.positions
    return EngineMemory(
        slots=slots, page_size=page_size, footprint=footprint, wanted_positions=-(-wanted // page_size) * page_size
    )
