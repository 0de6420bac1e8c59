"""Banks for LoRA adapters beside the linear maps of a model, from which each row of an input chooses one.

Dimensions: p banks, r the largest rank, i inputs and o outputs of a map, t rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from voxcpm_grpc.kernels.lora.grouped_lora import GroupedUpdate
    from voxcpm_grpc.kernels.lora.row_lora import RowUpdate

LEAST_RANK = 16  # the kernels need it


@dataclass(frozen=True, slots=True)
class LowRank:
    """The adapters of one linear map, which may be several maps side by side (`parts`)."""

    down: Tensor  # [p, parts, r, i]
    up: Tensor  # [p, o, r], with the scale of the adapter
    parts: tuple[int, ...]  # outputs of each map
    norm: Tensor | None = None  # [i], the weight of the norm in front of the map, if the map's weight contains it

    def add(self, out: Tensor, x: Tensor, adapter: Tensor, *, eps: float | None = None, scale: float = 1.0) -> None:
        """Add `scale` times the update of the adapter of each row of x [t, i] to out [t, o], in place.

        adapter int64 [s]: the bank of row r is adapter[r % s], negative for the model alone. With eps, x is first
        divided by its root mean square.
        """
        if x.is_cuda:
            from voxcpm_grpc.kernels.lora.grouped_lora import add_low_rank
        else:
            from voxcpm_grpc.kernels.lora.reference import add_low_rank
        add_low_rank(out, x, adapter, self.down, self.up, self.parts, norm=self.norm, eps=eps, scale=scale)

    def beside(self, x: Tensor, adapter: Tensor, *, eps: float | None = None) -> GroupedUpdate:
        """The same update for a GPU, computed beside the `late` kernel that is launched next and reads x, too.

        Call its `add` after that launch.
        """
        from voxcpm_grpc.kernels.lora.grouped_lora import prepare

        return prepare(x, adapter, self.down, self.up, self.parts, norm=self.norm, eps=eps, beside=True)

    def of_row(self, adapter: Tensor) -> RowUpdate:
        """The same update for one row, which `kernels.gemv` prepares together with the row's product."""
        from voxcpm_grpc.kernels.lora.row_lora import RowUpdate

        return RowUpdate.of(adapter, self.down, self.up, self.parts, self.norm)

    def behind(self, norm: Tensor) -> LowRank:
        """The same adapters of a map whose weight was multiplied with the weight of the norm in front of it."""
        return replace(self, norm=norm)


@dataclass(frozen=True, slots=True)
class Update:
    """The update of one linear map by an adapter."""

    down: Tensor  # [rank, i]
    up: Tensor  # [o, rank]


@dataclass(frozen=True, slots=True)
class _Part:
    """The memory of one map among several side by side."""

    down: Tensor  # [p, r, i]
    up: Tensor  # [p, o, r]


@dataclass(frozen=True, slots=True)
class AdapterBanks:
    """The memory of all adapters of a model, by the name of each linear map that they may change."""

    count: int
    rank: int  # no adapter has a larger rank
    adapts: Callable[[str], bool]  # it tells whether adapters may change the map of a name
    device: torch.device
    dtype: torch.dtype
    _parts: dict[str, _Part] = field(default_factory=dict)

    def allocate(self, outputs: Mapping[str, int], inputs: int) -> LowRank | None:
        """Memory for maps of one input, side by side, by name. None if adapters change none of them."""
        if not any(self.adapts(name) for name in outputs):
            return None
        rank = max(LEAST_RANK, 1 << (self.rank - 1).bit_length())
        down = torch.zeros(self.count, len(outputs), rank, inputs, device=self.device, dtype=self.dtype)
        up = torch.zeros(self.count, sum(outputs.values()), rank, device=self.device, dtype=self.dtype)
        first = 0
        for index, (name, size) in enumerate(outputs.items()):
            self._parts[name] = _Part(down[:, index], up[:, first : first + size])
            first += size
        return LowRank(down, up, tuple(outputs.values()))

    @property
    def maps(self) -> Mapping[str, tuple[int, int]]:
        """The outputs and inputs of the maps that adapters may change."""
        return {name: (part.up.shape[1], part.down.shape[2]) for name, part in self._parts.items() if self.adapts(name)}

    @torch.inference_mode()
    def write(self, bank: int, updates: Mapping[str, Update]) -> None:
        """Replace the content of a bank, in the order of the current stream. The updates contain their scale."""
        for name, part in self._parts.items():
            down, up = part.down[bank], part.up[bank]
            update = updates.get(name)
            if update is None:
                up.zero_()  # the other half needs no change: zero times anything finite is zero
                continue
            rank = len(update.down)
            down[:rank].copy_(update.down, non_blocking=True)
            down[rank:].zero_()
            up[:, :rank].copy_(update.up, non_blocking=True)
            up[:, rank:].zero_()
