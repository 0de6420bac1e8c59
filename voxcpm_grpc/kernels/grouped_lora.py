"""Low-rank updates of a linear map, with another adapter for each row.

A program serves 16 rows. The first kernel maps the rows of one adapter to the low rank, in several shares of the inputs
if there are few rows. The second one adds up the shares and maps them to the outputs.
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import gcd

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch import chained, launch_next, wait

ROWS = 16
MAX_PARTS = 3
MAX_COLUMNS = 128
DEPTH = 128
SHARE = 256  # inputs of a program while there are few rows
FEW_TILES = 16


def add_low_rank(
    out: Tensor,
    x: Tensor,
    adapter: Tensor,
    down: Tensor,
    up: Tensor,
    parts: Sequence[int],
    *,
    norm: Tensor | None = None,
    eps: float | None = None,
    scale: float = 1.0,
) -> None:
    """Computes `reference.add_low_rank`. The rank is a power of two, at least 16."""
    rows, inputs = x.shape
    places, count, rank, _ = down.shape
    if count != len(parts) or count > MAX_PARTS or sum(parts) != out.shape[1]:
        raise ValueError(f"{count} maps to the low rank do not serve outputs of {list(parts)}")
    if not all(tensor.is_contiguous() for tensor in (out, x, adapter, down, up)):
        raise ValueError("out, x, adapter, down and up must be contiguous")
    tiles = triton.cdiv(rows, ROWS)
    splits = triton.cdiv(inputs, SHARE) if tiles <= FEW_TILES else 1
    share = triton.cdiv(triton.cdiv(inputs, splits), DEPTH) * DEPTH
    middle = x.new_empty(splits, count, rows, rank, dtype=torch.float32)
    squares = x.new_empty(splits, rows, dtype=torch.float32)
    launch = chained(x.device)
    shape = {"INPUTS": inputs, "RANK": rank, "PARTS": count, "SPLITS": splits, "ROWS": ROWS}
    _shrink_kernel[(tiles, places, count * splits)](
        x,
        adapter,
        down,
        x if norm is None else norm,
        middle,
        squares,
        rows,
        SHARE=share,
        DEPTH=DEPTH,
        WEIGHTED=norm is not None,
        SQUARED=eps is not None,
        **shape,
        **launch,
    )
    columns = _columns(parts)
    ends = [*accumulate(parts), *[out.shape[1]] * MAX_PARTS]
    _expand_kernel[(tiles, out.shape[1] // columns)](
        middle,
        squares,
        adapter,
        up,
        out,
        rows,
        eps or 0.0,
        scale,
        FIRST=ends[0],
        SECOND=ends[1],
        OUTPUTS=out.shape[1],
        PLACES=places,
        COLUMNS=columns,
        NORMALIZE=eps is not None,
        **shape,
        **launch,
    )


def _columns(parts: Sequence[int]) -> int:
    """The outputs of a program: a power of two that divides all parts."""
    common = gcd(*parts)
    columns = min(common & -common, MAX_COLUMNS)
    if columns < ROWS:
        raise ValueError(f"outputs of {list(parts)} are not multiples of {ROWS}")
    return columns


# Arguments that change from step to step are not specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["rows"])
def _shrink_kernel(
    x,
    adapter,
    down,
    norm,
    middle,
    squares,
    rows,
    INPUTS: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    SHARE: tl.constexpr,
    DEPTH: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SQUARED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    place = tl.program_id(1)
    part = tl.program_id(2) // SPLITS
    split = tl.program_id(2) % SPLITS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    wait(OVERLAP)
    own = tl.load(adapter + row, mask=row < rows, other=-1) == place
    if tl.sum(own.to(tl.int32)) == 0:
        return
    rank = tl.arange(0, RANK)
    low = tl.zeros([ROWS, RANK], tl.float32)
    square = tl.zeros([ROWS], tl.float32)
    base = down + ((place * PARTS + part) * RANK + rank[None, :]).to(tl.int64) * INPUTS
    for k in tl.range(split * SHARE, split * SHARE + SHARE, DEPTH):
        step = k + tl.arange(0, DEPTH)
        known = step < INPUTS
        entry = tl.load(x + row[:, None] * INPUTS + step[None, :], mask=own[:, None] & known[None, :], other=0.0)
        if SQUARED:
            wide = entry.to(tl.float32)
            square += tl.sum(wide * wide, 1)
        if WEIGHTED:
            factor = tl.load(norm + step, mask=known, other=0.0)
            entry = (entry.to(tl.float32) * factor[None, :].to(tl.float32)).to(entry.dtype)
        weight = tl.load(base + step[:, None], mask=known[:, None], other=0.0)
        low = tl.dot(entry, weight, low, input_precision="ieee")
    where = ((split * PARTS + part) * rows + row[:, None]) * RANK + rank[None, :]
    tl.store(middle + where, low, mask=own[:, None])
    if SQUARED:  # noqa: SIM102 - the first condition is known at compile time
        if part == 0:
            tl.store(squares + split * rows + row, square, mask=own)


@triton.jit(do_not_specialize=["rows"])
def _expand_kernel(
    middle,
    squares,
    adapter,
    up,
    out,
    rows,
    eps,
    scale,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    OUTPUTS: tl.constexpr,
    PLACES: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    INPUTS: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    first = tl.program_id(1) * COLUMNS
    part = (first >= FIRST).to(tl.int32) + (first >= SECOND).to(tl.int32)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = first + tl.arange(0, COLUMNS)
    rank = tl.arange(0, RANK)
    wait(OVERLAP)
    own = tl.load(adapter + row, mask=row < rows, other=-1)
    adapted = own >= 0
    if tl.sum(adapted.to(tl.int32)) == 0:
        return
    low = tl.zeros([ROWS, RANK], tl.float32)
    square = tl.zeros([ROWS], tl.float32)
    for split in tl.static_range(SPLITS):
        where = ((split * PARTS + part) * rows + row[:, None]) * RANK + rank[None, :]
        low += tl.load(middle + where, mask=adapted[:, None], other=0.0)
        if NORMALIZE:
            square += tl.load(squares + split * rows + row, mask=adapted, other=0.0)
    if NORMALIZE:
        low *= tl.rsqrt(square / INPUTS + eps)[:, None]
    entry = low.to(up.dtype.element_ty)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for place in tl.range(PLACES):
        mine = own == place
        if tl.sum(mine.to(tl.int32)) > 0:
            weight = tl.load(up + (place * OUTPUTS + column[None, :]).to(tl.int64) * RANK + rank[:, None])
            acc = tl.dot(tl.where(mine[:, None], entry, 0.0).to(entry.dtype), weight, acc, input_precision="ieee")
    where = row[:, None] * OUTPUTS + column[None, :]
    before = tl.load(out + where, mask=adapted[:, None], other=0.0).to(tl.float32)
    tl.store(out + where, (before + acc * scale).to(out.dtype.element_ty), mask=adapted[:, None])
