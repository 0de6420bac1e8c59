"""Products of one row with a large weight, fused with the operations around them in a transformer layer.

A program loads a few whole rows of the weight into registers before its input exists (see `launch`). After the wait it
only loads the input and adds up. More programs map the input to the low rank of its adapter, if there is one.
"""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import launch_next, overlaps, wait
from voxcpm_grpc.kernels.lora.row_lora import RowUpdate

_NARROW = 1024  # a single warp sums a row of up to so many values, and exchanges nothing with others
# The warps of a program, and the bytes of weights in the registers of a thread, in loads of 16 bytes in flight.
_FEW, _SOME, _MANY = (1, 256), (4, 128), (8, 128)


def gemv_norm_linear(
    x: Tensor,
    eps: float,
    weight: Tensor,
    update: RowUpdate | None = None,
    *,
    gain: Tensor | None = None,
    weight_scale: Tensor | None = None,
) -> Tensor:
    """Computes `reference.norm_linear` for one row, and prepares the `update` of the result, which has no `gain`."""
    return _launch(x, weight, weight.shape[0], eps=eps, gain=gain, update=update, weight_scale=weight_scale)


def gemv_norm_gated(
    x: Tensor, eps: float, weight: Tensor, *, gain: Tensor | None = None, weight_scale: Tensor | None = None
) -> Tensor:
    """Computes `reference.norm_gated` for one row."""
    return _launch(x, weight, weight.shape[0] // 2, eps=eps, gain=gain, gated=True, weight_scale=weight_scale)


def gemv_linear_add(
    x: Tensor,
    weight: Tensor,
    residual: Tensor,
    scale: float,
    update: RowUpdate | None = None,
    *,
    weight_scale: Tensor | None = None,
) -> Tensor:
    """Computes `reference.linear_add` for one row, and prepares the `update` of the result."""
    return _launch(x, weight, weight.shape[0], residual=residual, scale=scale, update=update, weight_scale=weight_scale)


def _launch(
    x: Tensor,
    weight: Tensor,
    outputs: int,
    *,
    eps: float | None = None,
    gain: Tensor | None = None,
    gated: bool = False,
    residual: Tensor | None = None,
    scale: float = 1.0,
    update: RowUpdate | None = None,
    weight_scale: Tensor | None = None,
) -> Tensor:
    rows, inputs = x.shape
    if rows != 1:
        raise ValueError(f"x has {rows} rows, this kernel takes one")
    if gain is not None and (update is not None or gain.shape != (inputs,) or not gain.is_contiguous()):
        raise ValueError(f"gain must be contiguous with {inputs} values, and an update takes none")
    if not x.is_contiguous() or not weight.is_contiguous() or (residual is not None and not residual.is_contiguous()):
        raise ValueError("x, weight and residual must be contiguous")
    block = triton.next_power_of_2(inputs)
    warps, each = _FEW if block <= _NARROW else _SOME if block <= 4096 else _MANY
    held = each * 32 * warps // block
    columns = max(1, held // weight.element_size() // (2 if gated else 1))
    low_columns = max(1, held // x.element_size())
    out = x.new_empty(1, outputs)
    overlap = overlaps(x.device)
    tiles, low = triton.cdiv(outputs, columns), 0 if update is None else update.low.numel()
    _gemv_kernel[(tiles + triton.cdiv(low, low_columns),)](
        x,
        weight,
        out if weight_scale is None else weight_scale,
        out if residual is None else residual,
        out if gain is None else gain,
        out,
        eps or 0.0,
        scale,
        *((weight, weight, weight, out) if update is None else update.operands),
        TILES=tiles,
        LOW=low,
        WEIGHTED=update is not None and update.norm is not None,
        OUTPUTS=outputs,
        INPUTS=inputs,
        COLUMNS=columns,
        LOW_COLUMNS=low_columns,
        BLOCK=block,
        NORM=eps is not None,
        GAIN=gain is not None,
        GATED=gated,
        ADD=residual is not None,
        SCALED=weight_scale is not None,
        OVERLAP=overlap,
        num_warps=warps,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


@triton.jit
def _gemv_kernel(
    x,
    weight,
    weight_scale,
    residual,
    gain,
    out,
    eps,
    scale,
    adapter,
    down,
    norm,
    low,
    TILES: tl.constexpr,
    LOW: tl.constexpr,
    WEIGHTED: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LOW_COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    GAIN: tl.constexpr,
    GATED: tl.constexpr,
    ADD: tl.constexpr,
    SCALED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    if LOW > 0:  # noqa: SIM102 - the first condition is known at compile time
        if tl.program_id(0) >= TILES:
            _shrink(x, adapter, down, norm, low, eps, TILES, LOW, WEIGHTED, INPUTS, LOW_COLUMNS, BLOCK, NORM, OVERLAP)
            return
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    present = column < OUTPUTS
    k = tl.arange(0, BLOCK)
    inside = (k < INPUTS)[None, :]
    where = column.to(tl.int64)[:, None] * INPUTS + k[None, :]
    mask = present[:, None] & inside
    gate = tl.load(weight + where, mask=mask, other=0.0)
    up = gate
    if GATED:
        up = tl.load(weight + OUTPUTS * INPUTS + where, mask=mask, other=0.0)
    step = tl.full([COLUMNS], 1.0, tl.float32)
    up_step = step
    if SCALED:
        step = tl.load(weight_scale + column, mask=present, other=0.0)
        if GATED:
            up_step = tl.load(weight_scale + OUTPUTS + column, mask=present, other=0.0)
    factor = tl.full([1, BLOCK], 1.0, tl.float32)
    if GAIN:
        factor = tl.load(gain + k[None, :], mask=inside, other=0.0).to(tl.float32)
    wait(OVERLAP)
    entry = tl.load(x + k[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORM:
        entry *= tl.rsqrt(tl.sum(entry * entry, 1)[:, None] / INPUTS + eps)
    if GAIN:  # rounded before and after the gain, as an RMSNorm of its own is
        kind = out.dtype.element_ty
        entry = (entry.to(kind).to(tl.float32) * factor).to(kind).to(tl.float32)
    acc = tl.sum(gate.to(tl.float32) * entry, 1) * step
    if GATED:
        acc = acc * tl.sigmoid(acc) * (tl.sum(up.to(tl.float32) * entry, 1) * up_step)
    if ADD:
        acc = acc * scale + tl.load(residual + column, mask=present, other=0.0).to(tl.float32)
    tl.store(out + column, acc.to(out.dtype.element_ty), mask=present)


@triton.jit
def _shrink(
    x,
    adapter,
    down,
    norm,
    low,
    eps,
    TILES: tl.constexpr,
    LOW: tl.constexpr,
    WEIGHTED: tl.constexpr,
    INPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A few of the LOW outputs of the adapter's maps to the low rank; none without an adapter."""
    bank = tl.load(adapter).to(tl.int32)
    column = (tl.program_id(0) - TILES) * COLUMNS + tl.arange(0, COLUMNS)
    present = column < tl.where(bank < 0, 0, LOW)
    k = tl.arange(0, BLOCK)
    inside = (k < INPUTS)[None, :]
    where = (tl.maximum(bank, 0) * LOW + column).to(tl.int64)[:, None] * INPUTS + k[None, :]
    weight = tl.load(down + where, mask=present[:, None] & inside, other=0.0).to(tl.float32)
    if WEIGHTED:
        weight *= tl.load(norm + k[None, :], mask=inside, other=0.0).to(tl.float32)
    wait(OVERLAP)
    entry = tl.load(x + k[None, :], mask=inside, other=0.0).to(tl.float32)
    if NORM:
        entry *= tl.rsqrt(tl.sum(entry * entry, 1)[:, None] / INPUTS + eps)
    tl.store(low + column, tl.sum(weight * entry, 1), mask=present)
