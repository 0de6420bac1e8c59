"""Matrix products of few rows with large weights, fused with what surrounds them in a transformer layer.

With so few rows the weights are the work: a tile of their rows is streamed once by one program, which keeps several
loads in flight and has asked for the first of them before its input existed (see `launch`).
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch import launch_next, overlaps, prefetch_rows, wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """How one launch is cut: a program takes `rows` rows of the input, `columns` outputs and `depth` inputs at a time.

    `ways` groups of warps share the inputs of a program among them, `splits` programs those of an output; both add up
    in a fixed order. `ahead` bytes of each weight row are asked for before the input exists.
    """

    rows: int
    columns: int
    depth: int
    ways: int = 1
    splits: int = 1
    stages: int = 4
    warps: int = 4
    ahead: int = 2048


def norm_linear(x: Tensor, norm: Tensor, eps: float, weight: Tensor, tile: Tile) -> Tensor:
    """What `reference.norm_linear` says."""
    return _launch(x, weight, tile, outputs=weight.shape[0], norm=norm, eps=eps)


def norm_gated(x: Tensor, norm: Tensor, eps: float, weight: Tensor, tile: Tile) -> Tensor:
    """What `reference.norm_gated` says."""
    return _launch(x, weight, tile, outputs=weight.shape[0] // 2, norm=norm, eps=eps, gated=True)


def linear_add(
    x: Tensor, weight: Tensor, residual: Tensor, scale: float, tile: Tile, counters: Tensor | None = None
) -> Tensor:
    """What `reference.linear_add` says. A tile that splits needs zeroed int32 `counters`, one per tile of the output,
    and leaves them zero."""
    return _launch(x, weight, tile, outputs=weight.shape[0], residual=residual, scale=scale, counters=counters)


def _launch(
    x: Tensor,
    weight: Tensor,
    tile: Tile,
    *,
    outputs: int,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
    scale: float = 1.0,
    counters: Tensor | None = None,
) -> Tensor:
    (rows, inputs), share = x.shape, x.shape[1] // tile.splits
    if inputs % (tile.splits * tile.ways * tile.depth) or outputs % tile.columns:
        raise ValueError(f"{tile} does not divide {inputs} inputs and {outputs} outputs")
    if not x.is_contiguous() or not weight.is_contiguous() or (residual is not None and not residual.is_contiguous()):
        raise ValueError("x, weight and residual must be contiguous")
    tiles, blocks = outputs // tile.columns, triton.cdiv(rows, tile.rows)
    if tile.splits > 1 and (counters is None or counters.numel() < tiles * blocks):
        raise ValueError(f"{tiles * blocks} counters are needed")
    out = x.new_empty(rows, outputs)
    part = x.new_empty(tile.splits, rows, outputs, dtype=torch.float32) if tile.splits > 1 else out
    overlap, piece = overlaps(x.device), _piece(min(tile.ahead, share * x.element_size()))
    _linear_kernel[(tiles, blocks, tile.splits)](
        x,
        out if norm is None else norm,
        weight,
        out if residual is None else residual,
        out,
        part,
        out if counters is None else counters,
        rows,
        eps,
        scale,
        OUTPUTS=outputs,
        INPUTS=inputs,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        WAYS=tile.ways,
        SPLITS=tile.splits,
        STAGES=tile.stages,
        NORM=norm is not None,
        GATED=gated,
        ADD=residual is not None,
        OVERLAP=overlap,
        PIECE=piece,
        PIECES=min(tile.ahead, share * x.element_size()) // piece if piece else 0,
        num_warps=tile.warps,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


def _piece(ahead: int) -> int:
    """The bytes of one prefetch instruction: enough of them that every thread of a program has one."""
    return min(ahead, 256)


# A view of a static buffer may start anywhere, and rows change from step to step: neither may ask for a compilation.
@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x,
    norm,
    weight,
    residual,
    out,
    part,
    counters,
    rows,
    eps,
    scale,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    WAYS: tl.constexpr,
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    NORM: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    OVERLAP: tl.constexpr,
    PIECE: tl.constexpr,
    PIECES: tl.constexpr,
):
    SHARE: tl.constexpr = INPUTS // SPLITS
    launch_next(OVERLAP)
    first = tl.program_id(0) * COLUMNS
    start = tl.program_id(2) * SHARE
    if OVERLAP and PIECES > 0:  # noqa: SIM102 - decided at compilation, the next at run time
        if tl.program_id(1) == 0:
            prefetch_rows(weight + start, first, INPUTS * 2, COLUMNS, PIECES, PIECE)
            if GATED:
                prefetch_rows(weight + start, first + OUTPUTS, INPUTS * 2, COLUMNS, PIECES, PIECE)
    wait(OVERLAP)

    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = first + tl.arange(0, COLUMNS)
    step = tl.arange(0, DEPTH)
    present = row < rows
    if WAYS == 1:
        x_where = start + row[:, None] * INPUTS + step[None, :]
        norm_where = start + step[None, :]
        weight_where = start + column[None, :] * INPUTS + step[:, None]
        x_mask = present[:, None]
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        squares = tl.zeros([ROWS], tl.float32)
    else:
        way = start + tl.arange(0, WAYS)[:, None, None] * (SHARE // WAYS)
        x_where = way + row[None, :, None] * INPUTS + step[None, None, :]
        norm_where = way + step[None, None, :]
        weight_where = way + column[None, None, :] * INPUTS + step[None, :, None]
        x_mask = present[None, :, None]
        acc = tl.zeros([WAYS, ROWS, COLUMNS], tl.float32)
        squares = tl.zeros([WAYS, ROWS], tl.float32)
    up = acc
    for k in tl.range(0, SHARE // WAYS, DEPTH, num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
        entry = tl.load(x + x_where + k, mask=x_mask, other=0.0)
        tile = tl.load(weight + weight_where + k)
        if NORM:
            wide = entry.to(tl.float32)
            squares += tl.sum(wide * wide, 1 if WAYS == 1 else 2)
            entry = (wide * tl.load(norm + norm_where + k).to(tl.float32)).to(entry.dtype)
        acc = tl.dot(entry, tile, acc, input_precision="ieee")
        if GATED:
            up = tl.dot(entry, tl.load(weight + OUTPUTS * INPUTS + weight_where + k), up, input_precision="ieee")

    if WAYS > 1:
        acc = tl.sum(acc, 0)
        squares = tl.sum(squares, 0)
        if GATED:
            up = tl.sum(up, 0)
    if NORM:
        factor = tl.rsqrt(squares / INPUTS + eps)[:, None]
        acc *= factor
        up *= factor
    if GATED:
        acc = acc * tl.sigmoid(acc) * up
    where = row[:, None] * OUTPUTS + column[None, :]
    mask = present[:, None]
    if SPLITS > 1:
        # The last program of an output adds all parts, in their own order: the sum never depends on who was late.
        tl.store(part + tl.program_id(2) * rows * OUTPUTS + where, acc, mask=mask)
        tl.debug_barrier()
        counter = counters + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if tl.atomic_add(counter, 1, sem="acq_rel") < SPLITS - 1:
            return
        tl.store(counter, 0)
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for split in tl.static_range(SPLITS):
            acc += tl.load(part + split * rows * OUTPUTS + where, mask=mask, other=0.0, cache_modifier=".cg")
    if ADD:
        acc = acc * scale + tl.load(residual + where, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + where, acc.to(out.dtype.element_ty), mask=mask)
