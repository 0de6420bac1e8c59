"""Elementwise operations with one reduction over a row, fused into one launch."""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import launch_next, overlaps, wait
from voxcpm_grpc.kernels.rows.padded_rows import empty_rows


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Computes `reference.rms_norm` for contiguous x [t, c]."""
    if not x.is_contiguous():
        raise ValueError("x must be contiguous")
    (rows, channels), out, overlap = x.shape, torch.empty_like(x), overlaps(x.device)
    _rms_norm_kernel[(rows,)](
        x,
        x if weight is None else weight,
        out,
        eps,
        CHANNELS=channels,
        BLOCK=triton.next_power_of_2(channels),
        WEIGHT=weight is not None,
        OVERLAP=overlap,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


def swiglu(gate_up: Tensor) -> Tensor:
    """Computes `reference.swiglu` for contiguous gate_up [t, 2c]."""
    return _swiglu(gate_up, None, 0.0)


def norm_swiglu(gate_up: Tensor, x: Tensor, eps: float) -> Tensor:
    """Computes `reference.norm_swiglu` for contiguous gate_up [t, 2f] and x [t, c]."""
    return _swiglu(gate_up, x, eps)


def _swiglu(gate_up: Tensor, x: Tensor | None, eps: float) -> Tensor:
    if not gate_up.is_contiguous() or (x is not None and not x.is_contiguous()):
        raise ValueError("gate_up and x must be contiguous")
    rows, channels = gate_up.shape[0], gate_up.shape[1] // 2
    inputs = 1 if x is None else x.shape[1]
    out = empty_rows(gate_up, rows, channels)
    overlap = overlaps(gate_up.device)
    _swiglu_kernel[(rows, triton.cdiv(channels, 1024))](
        gate_up,
        gate_up if x is None else x,
        out,
        channels,
        eps,
        INPUTS=inputs,
        INPUT_BLOCK=triton.next_power_of_2(inputs),
        BLOCK=1024,
        NORM=x is not None,
        OVERLAP=overlap,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


@triton.jit
def _rms_norm_kernel(
    x,
    weight,
    out,
    eps,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
    WEIGHT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    column = tl.arange(0, BLOCK)
    inside = column < CHANNELS
    where = tl.program_id(0).to(tl.int64) * CHANNELS + column
    scale = tl.full([BLOCK], 1.0, tl.float32)
    if WEIGHT:
        scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    wait(OVERLAP)
    wide = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
    kind = out.dtype.element_ty
    normalized = (wide * tl.rsqrt(tl.sum(wide * wide, 0) / CHANNELS + eps)).to(kind)
    tl.store(out + where, (normalized.to(tl.float32) * scale).to(kind), mask=inside)


@triton.jit
def _swiglu_kernel(
    gate_up,
    x,
    out,
    channels,
    eps,
    INPUTS: tl.constexpr,
    INPUT_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    NORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < channels
    kind = out.dtype.element_ty
    gate = tl.load(gate_up + row * (2 * channels) + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * channels) + channels + column, mask=inside, other=0.0).to(tl.float32)
    if NORM:
        k = tl.arange(0, INPUT_BLOCK)
        wide = tl.load(x + row * INPUTS + k, mask=k < INPUTS, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, 0) / INPUTS + eps)
        gate *= scale
        up *= scale
    activated = (gate * tl.sigmoid(gate)).to(kind).to(tl.float32)
    tl.store(out + row * channels + column, (activated * up).to(kind), mask=inside)
