"""Low-rank updates of a linear map, with another adapter for each sequence.

A program serves 16 rows, of few sequences if these have several rows each. The first kernel maps the rows of one
adapter to the low rank, in several shares of the inputs if there are few rows. The second one adds up the shares and
maps them to the outputs. Both find their adapter and load its weights before their input exists (see `launch`).
"""

# pyright: reportArgumentType=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import chained, launch_next, wait

MAX_BANKS = 62  # a set of banks is an integer of 64 bits
ROWS = 16
MAX_PARTS = 3
COLUMNS, MANY_COLUMNS = 64, 128  # outputs of a program, with few and with many rows, at most
MAX_DEPTH = 128  # inputs of a tile
TILE_BYTES = 16 << 10  # bytes of weights in a tile, at most
SHARE, SHARE_BESIDE = 128, 512  # inputs of a program while there are few rows
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
    """Computes `reference.add_low_rank`. Parameters as for `prepare`."""
    prepare(x, adapter, down, up, parts, norm=norm, eps=eps).add(out, scale=scale)


def prepare(
    x: Tensor,
    adapter: Tensor,
    down: Tensor,
    up: Tensor,
    parts: Sequence[int],
    *,
    norm: Tensor | None = None,
    eps: float | None = None,
    beside: bool = False,
) -> GroupedUpdate:
    """Allocate what an update needs. The rank is a power of two, at least 16.

    `adapter` is read while previous kernels still run: it must not come from one of the overlapping kernels before.
    With `beside`, the next launch must be that of a `late` kernel (see `launch`), and x must be complete before it.
    """
    rows, inputs = x.shape
    banks, count, rank, _ = down.shape
    sequences = len(adapter)
    require_parts(count, parts, up.shape[1])
    if banks > MAX_BANKS or rows % sequences:
        raise ValueError(f"{banks} banks, at most {MAX_BANKS}; {rows} rows of {sequences} sequences")
    if not all(tensor.is_contiguous() for tensor in (x, adapter, down, up)):
        raise ValueError("x, adapter, down and up must be contiguous")
    splits = triton.cdiv(inputs, SHARE_BESIDE if beside else SHARE) if triton.cdiv(rows, ROWS) <= FEW_TILES else 1
    middle = x.new_empty(splits, count, rows, rank, dtype=torch.float32)
    squares = x.new_empty(splits, rows, dtype=torch.float32)
    return GroupedUpdate(x, adapter, down, up, tuple(parts), norm, eps, beside, middle, squares)


def require_parts(count: int, parts: Sequence[int], outputs: int) -> None:
    """Raise ValueError unless `count` maps to the low rank serve these parts of the outputs."""
    if count != len(parts) or count > MAX_PARTS or sum(parts) != outputs:
        raise ValueError(f"{count} maps to the low rank do not serve outputs of {list(parts)}")


@dataclass(frozen=True, slots=True)
class GroupedUpdate:
    """An update of the rows of a map's output, made by `prepare`."""

    x: Tensor  # [t, i]
    adapter: Tensor  # int64 [s]
    down: Tensor  # [p, parts, r, i]
    up: Tensor  # [p, o, r]
    parts: tuple[int, ...]
    norm: Tensor | None  # [i]
    eps: float | None
    beside: bool
    middle: Tensor  # float32 [splits, parts, t, r]: shares of the rows in the low rank
    squares: Tensor  # float32 [splits, t]: shares of the sum of squares of each row

    def add(self, out: Tensor, *, scale: float = 1.0, squares: Tensor | None = None) -> None:
        """Add `scale` times the update to out [t, o], in place.

        squares float32 [n, t] holds sums of the squares of each row of out, over equal parts of its columns, and is
        brought up to date. There must be one part then.
        """
        rows, outputs = out.shape
        if outputs != sum(self.parts) or not out.is_contiguous():
            raise ValueError(f"out has {outputs} columns for outputs of {list(self.parts)}, or is not contiguous")
        if squares is not None and (len(self.parts) > 1 or not squares.is_contiguous()):
            raise ValueError(f"squares must be contiguous, and there must be one part, not {len(self.parts)}")
        sequences, tiles = len(self.adapter), triton.cdiv(rows, ROWS)
        banks, count, rank, inputs = self.down.shape
        splits = len(self.middle)
        depth = min(MAX_DEPTH, TILE_BYTES // (rank * self.x.element_size()))
        columns = min(COLUMNS if tiles <= FEW_TILES else MANY_COLUMNS, TILE_BYTES // (rank * self.x.element_size()))
        columns = columns if squares is None else outputs // len(squares)
        in_tile = min(banks, sequences, (ROWS - 1) // (rows // sequences) + 2, ROWS)  # adapters in a tile, at most
        shape = {"INPUTS": inputs, "RANK": rank, "PARTS": count, "SPLITS": splits, "ROWS": ROWS}
        shape |= {"BANKS": banks, "SINGLE": sequences == 1} | chained(out.device)
        _shrink_kernel[(tiles, in_tile, count * splits)](
            self.x,
            self.adapter,
            self.down,
            self.x if self.norm is None else self.norm,
            self.middle,
            self.squares,
            rows,
            sequences,
            SHARE=triton.cdiv(triton.cdiv(inputs, splits), depth) * depth,
            DEPTH=depth,
            WEIGHTED=self.norm is not None,
            SQUARED=self.eps is not None,
            BESIDE=self.beside,
            **shape,
        )
        ends = [*accumulate(self.parts), *[outputs] * MAX_PARTS]
        _expand_kernel[(tiles, in_tile, sum(triton.cdiv(part, columns) for part in self.parts))](
            self.middle,
            self.squares,
            self.adapter,
            self.up,
            out,
            self.squares if squares is None else squares,
            rows,
            sequences,
            self.eps or 0.0,
            scale,
            FIRST=ends[0],
            SECOND=ends[1],
            THIRD=ends[2],
            OUTPUTS=outputs,
            COLUMNS=columns,
            NORMALIZE=self.eps is not None,
            COUNTED=squares is not None,
            **shape,
        )


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _rows_and_bank(rows, sequences, adapter, ROWS: tl.constexpr, BANKS: tl.constexpr, SINGLE: tl.constexpr):
    """The rows of a tile, sequence by sequence, those of them for this program, and their bank; -1: there are none.

    Rows stand in memory token by token. Of the adapters in the tile, the program has that of its number.
    """
    index = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    present = index < rows
    if SINGLE:  # the launch has one sequence
        return index, present, tl.load(adapter).to(tl.int32)
    tokens = rows // sequences
    sequence = index // tokens
    each = tl.load(adapter + sequence, mask=present, other=-1).to(tl.int32)
    bits = tl.where(each >= 0, tl.full([ROWS], 1, tl.int64) << tl.maximum(each, 0), 0)
    bits = tl.reduce(bits, 0, _either)
    bank = -1
    count = 0
    for candidate in tl.static_range(BANKS):
        found = ((bits >> candidate) & 1).to(tl.int32)
        bank = tl.where((found == 1) & (count == tl.program_id(1)), candidate, bank)
        count += found
    return index % tokens * sequences + sequence, present & (each == bank), bank


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
    BANKS: tl.constexpr,
    SINGLE: tl.constexpr,
    SHARE: tl.constexpr,
    DEPTH: tl.constexpr,
    WEIGHTED: tl.constexpr,
    SQUARED: tl.constexpr,
    BESIDE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    HELD: tl.constexpr = SHARE == DEPTH  # one tile of weights stays in registers
    part = tl.program_id(2) // SPLITS
    split = tl.program_id(2) % SPLITS
    row, own, bank = _rows_and_bank(rows, sequences, adapter, ROWS, BANKS, SINGLE)
    rank = tl.arange(0, RANK)
    base = down + ((tl.maximum(bank, 0) * PARTS + part) * RANK + rank[None, :]).to(tl.int64) * INPUTS
    step = split * SHARE + tl.arange(0, DEPTH)
    weight = tl.load(base + step[:, None], mask=(step < tl.where(bank < 0, 0, INPUTS))[:, None], other=0.0)
    wait(OVERLAP and not BESIDE)
    if bank < 0:
        wait(OVERLAP and BESIDE)
        return
    low = tl.zeros([ROWS, RANK], tl.float32)
    square = tl.zeros([ROWS], tl.float32)
    for k in tl.range(0, SHARE, DEPTH, num_stages=1 if HELD else 3):
        step = split * SHARE + k + tl.arange(0, DEPTH)
        known = step < INPUTS
        there = x + row[:, None] * INPUTS + step[None, :]
        # The L2 cache has it, because another kernel may have written x while this one was started.
        entry = tl.load(there, mask=own[:, None] & known[None, :], other=0.0, cache_modifier=".cg")
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
    wait(OVERLAP and BESIDE)


@triton.jit(do_not_specialize=["rows", "sequences"])
def _expand_kernel(
    middle,
    squares,
    adapter,
    up,
    out,
    made,
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
    COUNTED: tl.constexpr,
    INPUTS: tl.constexpr,
    RANK: tl.constexpr,
    PARTS: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    BANKS: tl.constexpr,
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
    row, own, bank = _rows_and_bank(rows, sequences, adapter, ROWS, BANKS, SINGLE)
    weights = up + (tl.maximum(bank, 0) * OUTPUTS + column[None, :]).to(tl.int64) * RANK + rank[:, None]
    weight = tl.load(weights, mask=(column < tl.where(bank < 0, 0, end))[None, :], other=0.0)
    wait(OVERLAP)
    if bank < 0:
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
    result = (total + added * scale).to(out.dtype.element_ty)
    tl.store(out + where, result, mask=changed)
    if COUNTED:
        wide = tl.where(changed, result.to(tl.float32), 0.0)
        tl.store(made + block * rows + row, tl.sum(wide * wide, 1), mask=own)
