"""Low-rank updates of a linear map, with another adapter for each sequence.

A program serves 16 rows, of few sequences if these have several rows each. The first kernel maps the rows of one
adapter to the low rank, in several shares of the inputs if there are few rows. The second one adds up the shares and
maps them to the outputs. Both find their adapter and load its weights before their input exists (see `launch`).
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch import chained, launch_next, wait

MAX_PLACES = 62  # a bit each
ROWS = 16
MAX_PARTS = 3
COLUMNS, MANY_COLUMNS = 64, 128  # outputs of a program, with few and with many rows, at most
MAX_DEPTH = 128  # inputs of a tile
TILE_BYTES = 16 << 10  # of weights in a tile, at most
SHARE = 128  # inputs of a program while there are few rows
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
    """Computes `reference.add_low_rank`. The rank is a power of two, at least 16.

    `adapter` is read while previous kernels still run: it must not come from one of the overlapping kernels before.
    """
    rows, inputs = x.shape
    places, count, rank, _ = down.shape
    sequences = len(adapter)
    if count != len(parts) or count > MAX_PARTS or sum(parts) != out.shape[1]:
        raise ValueError(f"{count} maps to the low rank do not serve outputs of {list(parts)}")
    if places > MAX_PLACES or rows % sequences:
        raise ValueError(f"{places} places, at most {MAX_PLACES}; {rows} rows of {sequences} sequences")
    if not all(tensor.is_contiguous() for tensor in (out, x, adapter, down, up)):
        raise ValueError("out, x, adapter, down and up must be contiguous")
    tokens, tiles = rows // sequences, triton.cdiv(rows, ROWS)
    splits = triton.cdiv(inputs, SHARE) if tiles <= FEW_TILES else 1
    depth = min(MAX_DEPTH, TILE_BYTES // (rank * x.element_size()))
    share = triton.cdiv(triton.cdiv(inputs, splits), depth) * depth
    middle = x.new_empty(splits, count, rows, rank, dtype=torch.float32)
    squares = x.new_empty(splits, rows, dtype=torch.float32)
    launch = chained(x.device)
    in_tile = min(places, sequences, (ROWS - 1) // tokens + 2, ROWS)  # adapters in a tile, at most
    shape = {"INPUTS": inputs, "RANK": rank, "PARTS": count, "SPLITS": splits, "ROWS": ROWS}
    shape |= {"PLACES": places, "SINGLE": sequences == 1}
    _shrink_kernel[(tiles, in_tile, count * splits)](
        x,
        adapter,
        down,
        x if norm is None else norm,
        middle,
        squares,
        rows,
        sequences,
        SHARE=share,
        DEPTH=depth,
        WEIGHTED=norm is not None,
        SQUARED=eps is not None,
        **shape,
        **launch,
    )
    columns = min(COLUMNS if tiles <= FEW_TILES else MANY_COLUMNS, TILE_BYTES // (rank * x.element_size()))
    ends = [*accumulate(parts), *[out.shape[1]] * MAX_PARTS]
    _expand_kernel[(tiles, in_tile, sum(triton.cdiv(part, columns) for part in parts))](
        middle,
        squares,
        adapter,
        up,
        out,
        rows,
        sequences,
        eps or 0.0,
        scale,
        FIRST=ends[0],
        SECOND=ends[1],
        THIRD=ends[2],
        OUTPUTS=out.shape[1],
        COLUMNS=columns,
        NORMALIZE=eps is not None,
        **shape,
        **launch,
    )


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _rows_and_place(rows, sequences, adapter, ROWS: tl.constexpr, PLACES: tl.constexpr, SINGLE: tl.constexpr):
    """The rows of a tile, sequence by sequence, those of them for this program, and their place; -1: there are none.

    Rows stand in memory token by token. Of the adapters in the tile, the program has that of its number.
    """
    index = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = index < rows
    if SINGLE:  # one sequence
        return index, present, tl.load(adapter).to(tl.int32)
    tokens = rows // sequences
    sequence = index // tokens
    each = tl.load(adapter + sequence, mask=present, other=-1).to(tl.int32)
    bits = tl.where(each >= 0, tl.full([ROWS], 1, tl.int64) << tl.maximum(each, 0), 0)
    bits = tl.reduce(bits, 0, _either)
    place = -1
    count = 0
    for candidate in tl.static_range(PLACES):
        found = ((bits >> candidate) & 1).to(tl.int32)
        place = tl.where((found == 1) & (count == tl.program_id(1)), candidate, place)
        count += found
    return index % tokens * sequences + sequence, present & (each == place), place


# Arguments that change from step to step are not specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["rows", "sequences"])
def _shrink_kernel(
    x,
    adapter,
    down,
    norm,
    middle,
    squares,
    rows,
    sequences,
    INPUTS: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    PLACES: tl.constexpr,
    SINGLE: tl.constexpr,
    SHARE: tl.constexpr,
    DEPTH: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SQUARED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    HELD: tl.constexpr = SHARE == DEPTH  # one tile of weights, in registers
    part = tl.program_id(2) // SPLITS
    split = tl.program_id(2) % SPLITS
    row, own, place = _rows_and_place(rows, sequences, adapter, ROWS, PLACES, SINGLE)
    rank = tl.arange(0, RANK)
    base = down + ((tl.maximum(place, 0) * PARTS + part) * RANK + rank[None, :]).to(tl.int64) * INPUTS
    step = split * SHARE + tl.arange(0, DEPTH)
    weight = tl.load(base + step[:, None], mask=(step < tl.where(place < 0, 0, INPUTS))[:, None], other=0.0)
    wait(OVERLAP)
    if place < 0:
        return
    low = tl.zeros([ROWS, RANK], tl.float32)
    square = tl.zeros([ROWS], tl.float32)
    for k in tl.range(0, SHARE, DEPTH, num_stages=1 if HELD else 3):
        step = split * SHARE + k + tl.arange(0, DEPTH)
        known = step < INPUTS
        entry = tl.load(x + row[:, None] * INPUTS + step[None, :], mask=own[:, None] & known[None, :], other=0.0)
        if not HELD:
            weight = tl.load(base + step[:, None], mask=known[:, None], other=0.0)
        if SQUARED:
            wide = entry.to(tl.float32)
            square += tl.sum(wide * wide, 1)
        if WEIGHTED:
            factor = tl.load(norm + step, mask=known, other=0.0)
            entry = (entry.to(tl.float32) * factor[None, :].to(tl.float32)).to(entry.dtype)
        low = tl.dot(entry, weight, low, input_precision="ieee")
    where = ((split * PARTS + part) * rows + row[:, None]) * RANK + rank[None, :]
    tl.store(middle + where, low, mask=own[:, None])
    if SQUARED:  # noqa: SIM102 - the first condition is known at compile time
        if part == 0:
            tl.store(squares + split * rows + row, square, mask=own)


@triton.jit(do_not_specialize=["rows", "sequences"])
def _expand_kernel(
    middle,
    squares,
    adapter,
    up,
    out,
    rows,
    sequences,
    eps,
    scale,
    FIRST: tl.constexpr,
    SECOND: tl.constexpr,
    THIRD: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORMALIZE: tl.constexpr,
    INPUTS: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    PLACES: tl.constexpr,
    SINGLE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    # The programs of each part of the outputs follow those of the part before.
    ENDS_1: tl.constexpr = (FIRST + COLUMNS - 1) // COLUMNS
    ENDS_2: tl.constexpr = ENDS_1 + (SECOND - FIRST + COLUMNS - 1) // COLUMNS
    launch_next(OVERLAP)
    block = tl.program_id(2)
    part = (block >= ENDS_1).to(tl.int32) + (block >= ENDS_2).to(tl.int32)
    start = tl.where(part == 0, 0, tl.where(part == 1, FIRST, SECOND))
    end = tl.where(part == 0, FIRST, tl.where(part == 1, SECOND, THIRD))
    before = tl.where(part == 0, 0, tl.where(part == 1, ENDS_1, ENDS_2))
    column = start + (block - before) * COLUMNS + tl.arange(0, COLUMNS)
    known = column < end
    rank = tl.arange(0, RANK)
    row, own, place = _rows_and_place(rows, sequences, adapter, ROWS, PLACES, SINGLE)
    weights = up + (tl.maximum(place, 0) * OUTPUTS + column[None, :]).to(tl.int64) * RANK + rank[:, None]
    weight = tl.load(weights, mask=(column < tl.where(place < 0, 0, end))[None, :], other=0.0)
    wait(OVERLAP)
    if place < 0:
        return
    where = row[:, None] * OUTPUTS + column[None, :]
    changed = own[:, None] & known[None, :]
    total = tl.load(out + where, mask=changed, other=0.0).to(tl.float32)
    low = tl.zeros([ROWS, RANK], tl.float32)
    square = tl.zeros([ROWS], tl.float32)
    for split in tl.static_range(SPLITS):
        share = ((split * PARTS + part) * rows + row[:, None]) * RANK + rank[None, :]
        low += tl.load(middle + share, mask=own[:, None], other=0.0)
        if NORMALIZE:
            square += tl.load(squares + split * rows + row, mask=own, other=0.0)
    if NORMALIZE:
        low *= tl.rsqrt(square / INPUTS + eps)[:, None]
    added = tl.dot(low.to(weight.dtype), weight, input_precision="ieee")
    tl.store(out + where, (total + added * scale).to(out.dtype.element_ty), mask=changed)
