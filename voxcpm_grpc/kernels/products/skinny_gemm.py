"""Matrix products of few rows with large weights, fused with the operations around them in a transformer layer.

With few rows, loading the weights takes most of the time. One program loads a tile of them once, keeps several loads in
flight, and issues the first ones before its input exists (see `launch`).
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.counters import counters
from voxcpm_grpc.kernels.launch.overlap import launch_next, overlaps, prefetch_rows, wait
from voxcpm_grpc.kernels.products.fp8 import conversion_scale, convert


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """The tile of a launch: a program computes `rows` rows and `columns` outputs from `depth` inputs at a time.

    `splits` programs share the inputs of an output and add up in a fixed order. `swap` makes the weights the first
    operand of the product, whose side should be 64, and the input the second. The first `ahead` lines of 128 bytes of
    each weight row are prefetched before the input exists.
    """

    rows: int
    columns: int
    depth: int
    splits: int = 1
    stages: int = 4
    warps: int = 4
    swap: bool = False
    ahead: int = 0


def norm_linear(
    x: Tensor,
    squares: Tensor | None,
    eps: float,
    weight: Tensor,
    tile: Tile,
    *,
    gain: Tensor | None = None,
    weight_scale: Tensor | None = None,
    late: bool = False,
) -> Tensor:
    """Computes `reference.norm_linear`. For `late` see `launch`.

    `squares` [parts, t] float32 holds partial sums of squares of each row of x. None: x is already normalized.
    """
    norm = {"squares": squares, "eps": eps, "gain": gain}
    return _launch(x, weight, tile, outputs=weight.shape[0], weight_scale=weight_scale, late=late, **norm)


def norm_gated(
    x: Tensor,
    squares: Tensor | None,
    eps: float,
    weight: Tensor,
    tile: Tile,
    *,
    gain: Tensor | None = None,
    weight_scale: Tensor | None = None,
) -> Tensor:
    """Computes `reference.norm_gated`. `squares` as for `norm_linear`."""
    norm = {"squares": squares, "eps": eps, "gain": gain}
    return _launch(x, weight, tile, outputs=weight.shape[0] // 2, weight_scale=weight_scale, gated=True, **norm)


def linear_add(
    x: Tensor,
    weight: Tensor,
    residual: Tensor,
    scale: float,
    tile: Tile,
    *,
    weight_scale: Tensor | None = None,
    late: bool = False,
) -> tuple[Tensor, Tensor]:
    """Computes `reference.linear_add`, and the `squares` of the result for a norm that follows.

    For `late` see `launch`.
    """
    made = x.new_empty(weight.shape[0] // tile.columns, x.shape[0], dtype=torch.float32)
    out = _launch(
        x,
        weight,
        tile,
        outputs=weight.shape[0],
        weight_scale=weight_scale,
        residual=residual,
        scale=scale,
        made=made,
        late=late,
    )
    return out, made


def _launch(
    x: Tensor,
    weight: Tensor,
    tile: Tile,
    *,
    outputs: int,
    weight_scale: Tensor | None = None,
    squares: Tensor | None = None,
    eps: float = 0.0,
    gain: Tensor | None = None,
    gated: bool = False,
    residual: Tensor | None = None,
    scale: float = 1.0,
    made: Tensor | None = None,
    late: bool = False,
) -> Tensor:
    rows, inputs = x.shape
    if inputs % (tile.splits * tile.depth) or outputs % tile.columns:
        raise ValueError(f"{tile} does not divide {inputs} inputs and {outputs} outputs")
    if not all(part.is_contiguous() for part in (x, weight, weight_scale, residual, squares, gain) if part is not None):
        raise ValueError("x, weight, weight_scale, residual, squares and gain must be contiguous")
    if gain is not None and (squares is None or gain.shape != (inputs,)):
        raise ValueError(f"gain must have {inputs} values, and needs squares")
    tiles, blocks = outputs // tile.columns, triton.cdiv(rows, tile.rows)
    out = x.new_empty(rows, outputs)
    part = x.new_empty(tile.splits, rows, outputs, dtype=torch.float32) if tile.splits > 1 else out
    parts = 0 if squares is None else squares.shape[0]
    overlap, size = overlaps(x.device), weight.element_size()
    _skinny_gemm_kernel[(tiles, blocks, tile.splits)](
        x,
        out if squares is None else squares,
        weight,
        out if weight_scale is None else weight_scale,
        out if residual is None else residual,
        out if gain is None else gain,
        out,
        out if made is None else made,
        part,
        counters(x.device, tiles * blocks) if tile.splits > 1 else out,
        rows,
        eps,
        scale,
        OUTPUTS=outputs,
        INPUTS=inputs,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        SPLITS=tile.splits,
        STAGES=tile.stages,
        PARTS=parts,
        PART_BLOCK=triton.next_power_of_2(max(parts, 1)),
        GAIN=gain is not None,
        GATED=gated,
        ADD=residual is not None,
        SWAP=tile.swap,
        SCALED=weight_scale is not None,
        AHEAD=min(tile.ahead, _power(inputs // tile.splits * size // 128)) * 128 // size,
        LATE=late,
        OVERLAP=overlap,
        num_warps=tile.warps,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


def _power(lines: int) -> int:
    """The largest power of two that is at most `lines`; 0 for 0."""
    return 1 << lines.bit_length() - 1 if lines else 0


# Arguments that change from step to step are not specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["rows"])
def _skinny_gemm_kernel(
    x,
    squares,
    weight,
    weight_scale,
    residual,
    gain,
    out,
    made,
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
    SPLITS: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    PART_BLOCK: tl.constexpr,
    GAIN: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    SWAP: tl.constexpr,
    SCALED: tl.constexpr,
    AHEAD: tl.constexpr,
    LATE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    SHARE: tl.constexpr = INPUTS // SPLITS
    WIDE: tl.constexpr = COLUMNS * 2 if GATED else COLUMNS
    launch_next(OVERLAP and not LATE)
    start = tl.program_id(2) * SHARE
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    present = row < rows
    # Gate and up are computed as one product, side by side.
    wide = tl.arange(0, WIDE)
    source = tl.program_id(0) * COLUMNS + wide % COLUMNS + wide // COLUMNS * OUTPUTS
    step = tl.arange(0, DEPTH)
    x_where = x + start + row[:, None] * INPUTS + step[None, :]
    weight_where = weight + start + source[None, :] * INPUTS + step[:, None]
    acc = tl.zeros([WIDE, ROWS] if SWAP else [ROWS, WIDE], tl.float32)
    if OVERLAP and AHEAD > 0:
        prefetch_rows(weight + start, source, INPUTS, AHEAD)
    wait(OVERLAP)
    launch_next(OVERLAP and LATE)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    where = row[:, None] * OUTPUTS + column[None, :]
    mask = present[:, None]
    added = acc
    if ADD:
        added = tl.load(residual + where, mask=mask, other=0.0)
    parts = acc
    if PARTS > 0:
        index = tl.arange(0, PART_BLOCK)
        known = (index < PARTS)[:, None] & present[None, :]
        parts = tl.load(squares + index[:, None] * rows + row[None, :], mask=known, other=0.0)
    factor = acc
    if GAIN:
        factor = tl.rsqrt(tl.sum(parts, 0) / INPUTS + eps)[:, None]
    for k in tl.range(0, SHARE, DEPTH, num_stages=STAGES):  # pyright: ignore[reportGeneralTypeIssues]
        entry = tl.load(x_where + k, mask=mask, other=0.0)
        if GAIN:  # rounded before and after the gain, as an RMSNorm of its own is
            kind = x.dtype.element_ty
            weights = tl.load(gain + start + k + step).to(tl.float32)[None, :]
            entry = ((entry.to(tl.float32) * factor).to(kind).to(tl.float32) * weights).to(kind)
        tile = convert(tl.load(weight_where + k), x.dtype.element_ty, SWAP)
        if SWAP:
            acc = tl.dot(tl.trans(tile), tl.trans(entry), acc, input_precision="ieee")
        else:
            acc = tl.dot(entry, tile, acc, input_precision="ieee")

    if SWAP:
        acc = tl.trans(acc)
    if SCALED:
        acc *= tl.load(weight_scale + source)[None, :] * conversion_scale(weight.dtype.element_ty, x.dtype.element_ty)
    if PARTS > 0 and not GAIN:
        # The scale of the norm is the same for all inputs of a row, so it can be applied to the sum.
        factor = tl.rsqrt(tl.sum(parts, 0) / INPUTS + eps)[:, None]
        acc *= factor
    if GATED:
        gate, up = tl.split(tl.permute(tl.reshape(acc, [ROWS, 2, COLUMNS]), [0, 2, 1]))
        acc = gate * tl.sigmoid(gate) * up
    if SPLITS > 1:
        # The last program of an output adds all parts in a fixed order, so the sum does not depend on timing.
        tl.store(part + tl.program_id(2) * rows * OUTPUTS + where, acc, mask=mask)
        tl.debug_barrier()
        counter = counters + tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if tl.atomic_add(counter, 1, sem="acq_rel") < SPLITS - 1:
            return
        tl.store(counter, 0)
        acc = tl.zeros([ROWS, COLUMNS], tl.float32)
        for split in tl.static_range(SPLITS):  # pyright: ignore[reportGeneralTypeIssues]
            acc += tl.load(part + split * rows * OUTPUTS + where, mask=mask, other=0.0, cache_modifier=".cg")
    if ADD:
        acc = acc * scale + added.to(tl.float32)
    result = acc.to(out.dtype.element_ty)
    tl.store(out + where, result, mask=mask)
    if ADD:
        # The squares are those of the rounded values, as the norm is that of the rounded row.
        wide = result.to(tl.float32)
        tl.store(made + tl.program_id(0) * rows + row, tl.sum(wide * wide, 1), mask=present)
