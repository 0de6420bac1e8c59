"""Chains of elementwise operations and one reduction over a row, each in one launch."""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """What `reference.add_rms_norm` says, for contiguous x and residual [t, c]."""
    if not (x.is_contiguous() and residual.is_contiguous()):
        raise ValueError("x and residual must be contiguous")
    rows, channels = x.shape
    out, total = torch.empty_like(x), torch.empty_like(x)
    _add_rms_norm_kernel[(rows,)](
        x, residual, weight, out, total, eps, CHANNELS=channels, BLOCK=triton.next_power_of_2(channels)
    )
    return out, total


def swiglu(gate_up: Tensor) -> Tensor:
    """What `reference.swiglu` says, for contiguous gate_up [t, 2c]."""
    if not gate_up.is_contiguous():
        raise ValueError("gate_up must be contiguous")
    rows, channels = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, channels)
    _swiglu_kernel[(rows, triton.cdiv(channels, 1024))](gate_up, out, channels, BLOCK=1024)
    return out


@triton.jit
def _add_rms_norm_kernel(x, residual, weight, out, total, eps, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < CHANNELS
    where = tl.program_id(0).to(tl.int64) * CHANNELS + column
    kind = out.dtype.element_ty
    # Rounded before the statistics: they are those of the sum that the next block adds to.
    added = tl.load(x + where, mask=inside, other=0.0).to(tl.float32)
    added = (added + tl.load(residual + where, mask=inside, other=0.0).to(tl.float32)).to(kind)
    tl.store(total + where, added, mask=inside)
    wide = added.to(tl.float32)
    normalized = (wide * tl.rsqrt(tl.sum(wide * wide, 0) / CHANNELS + eps)).to(kind)
    scaled = normalized.to(tl.float32) * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + where, scaled.to(kind), mask=inside)


@triton.jit
def _swiglu_kernel(gate_up, out, channels, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < channels
    kind = out.dtype.element_ty
    gate = tl.load(gate_up + row * (2 * channels) + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * (2 * channels) + channels + column, mask=inside, other=0.0).to(tl.float32)
    activated = (gate * tl.sigmoid(gate)).to(kind).to(tl.float32)
    tl.store(out + row * channels + column, (activated * up).to(kind), mask=inside)
