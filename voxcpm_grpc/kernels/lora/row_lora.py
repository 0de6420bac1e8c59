"""The low-rank update of one row of a map's output.

The product of the row (`gemv`) also maps its input to the low rank; the kernel here maps that to the outputs. It finds
its adapter and loads the weights before its input exists (see `launch`).
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import chained, launch_next, wait
from voxcpm_grpc.kernels.lora.grouped_lora import MAX_PARTS, require_parts

HELD = 32 * 128  # weights of a program


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """An update of one row. `gemv` computes `low` together with the product of the row, before `add`."""

    adapter: Tensor  # int64 [1]: its bank, negative for the model alone; complete before overlapping kernels
    down: Tensor  # [p, parts, r, i]
    up: Tensor  # [p, o, r]; r is a power of two
    parts: tuple[int, ...]  # outputs of each map
    norm: Tensor | None  # [i], the weight of the norm in front of the map, if the map's weight contains it
    low: Tensor  # float32 [parts, r]

    @classmethod
    def of(
        cls, adapter: Tensor, down: Tensor, up: Tensor, parts: tuple[int, ...], norm: Tensor | None = None
    ) -> RowUpdate:
        """Allocate what the update needs. Raises ValueError for operands that do not fit each other."""
        _, count, rank, _ = down.shape
        require_parts(count, parts, up.shape[1])
        if len(adapter) != 1:
            raise ValueError(f"there is one row, and adapters of {len(adapter)} sequences")
        if not (down.is_contiguous() and up.is_contiguous()):
            raise ValueError("down and up must be contiguous")
        return cls(adapter, down, up, parts, norm, up.new_empty(count, rank, dtype=torch.float32))

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The operands of the product's kernel: adapter, down, norm and low."""
        return self.adapter, self.down, self.down if self.norm is None else self.norm, self.low

    def add(self, out: Tensor, *, scale: float = 1.0) -> None:
        """Add `scale` times the update to out [1, o], in place."""
        outputs, rank = self.up.shape[1:]
        if out.shape != (1, outputs) or not out.is_contiguous():
            raise ValueError(f"out is {list(out.shape)}, not contiguous [1, {outputs}]")
        ends = [*accumulate(self.parts), *[outputs] * MAX_PARTS]
        columns = HELD // rank
        _expand_row_kernel[(triton.cdiv(outputs, columns),)](
            self.low,
            self.adapter,
            self.up,
            out,
            scale,
            FIRST=ends[0],
            SECOND=ends[1],
            OUTPUTS=outputs,
            RANK=rank,
            COLUMNS=columns,
            **chained(out.device),
        )


@triton.jit
def _expand_row_kernel(
    low,
    adapter,
    up,
    out,
    scale,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    OUTPUTS: tl.constexpr,
    RANK: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    bank = tl.load(adapter).to(tl.int32)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    present = column < tl.where(bank < 0, 0, OUTPUTS)
    rank = tl.arange(0, RANK)
    where = (tl.maximum(bank, 0) * OUTPUTS + column).to(tl.int64)[:, None] * RANK + rank[None, :]
    weight = tl.load(up + where, mask=present[:, None], other=0.0).to(tl.float32)
    part = (column >= FIRST).to(tl.int32) + (column >= SECOND).to(tl.int32)
    wait(OVERLAP)
    value = tl.load(low + part[:, None] * RANK + rank[None, :], mask=present[:, None], other=0.0)
    total = tl.load(out + column, mask=present, other=0.0).to(tl.float32)
    tl.store(out + column, (total + tl.sum(weight * value, 1) * scale).to(out.dtype.element_ty), mask=present)
