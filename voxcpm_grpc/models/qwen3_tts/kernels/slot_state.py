"""Kernels that store the results of a step in the state of all slots, in one launch each."""

# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false, reportAttributeAccessIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import chained, launch_next, wait


def store_codes(
    slot: Tensor,
    codes: Tensor,
    hidden: Tensor,
    end: int,
    *,
    first: Tensor,
    step: Tensor,
    kept: Tensor,
    seen: Tensor,
    current: Tensor,
    stop: Tensor,
    finite: Tensor,
) -> None:
    """Computes `reference.store_codes`. The numbers of slots may be columns of a table."""
    _require_contiguous(slot, codes, hidden, kept, seen, current, stop, finite)
    if kept.dtype != torch.int16 or any(x.dtype != torch.int64 for x in (slot, codes, first, step, current)):
        raise ValueError("the kept codes must be int16, all others and the numbers int64")
    groups, width = codes.shape[1], hidden.shape[1]
    flags = (x.view(torch.int8) for x in (seen, stop, finite))
    _store_codes_kernel[(len(slot),)](
        slot,
        codes,
        hidden,
        end,
        first,
        step,
        kept,
        *flags,
        current,
        first.stride(0),
        step.stride(0),
        kept.shape[1],
        seen.shape[1],
        CODES=groups,
        BLOCK=triton.next_power_of_2(groups),
        HIDDEN=width,
        HIDDEN_BLOCK=triton.next_power_of_2(width),
        **chained(slot.device),
    )


def store_hidden(slot: Tensor, hidden: Tensor, kept: Tensor, position: Tensor, step: Tensor) -> None:
    """Computes `reference.store_hidden`. The counters may be columns of a table."""
    _require_contiguous(slot, hidden, kept)
    width = hidden.shape[1]
    _store_hidden_kernel[(len(slot),)](
        slot,
        hidden,
        kept,
        position,
        step,
        position.stride(0),
        step.stride(0),
        len(kept) - 1,
        HIDDEN=width,
        BLOCK=triton.next_power_of_2(width),
        **chained(slot.device),
    )


def _require_contiguous(*tensors: Tensor) -> None:
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise ValueError("all tensors but the numbers of slots must be contiguous")


# The alignment of views and the sizes of tables are not specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["slot", "end", "first", "step", "first_stride", "step_stride", "positions", "ids"])
def _store_codes_kernel(
    slot,
    codes,
    hidden,
    end,
    first,
    step,
    kept,
    seen,
    stop,
    finite,
    current,
    first_stride,
    step_stride,
    positions,
    ids,
    CODES: tl.constexpr,
    BLOCK: tl.constexpr,
    HIDDEN: tl.constexpr,
    HIDDEN_BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    stream = tl.program_id(0)
    group, channel = tl.arange(0, BLOCK), tl.arange(0, HIDDEN_BLOCK)
    inside = group < CODES
    wait(OVERLAP)
    own = tl.load(slot + stream)
    code = tl.load(codes + stream * CODES + group, mask=inside, other=0)
    entry = tl.load(first + own * first_stride) + tl.load(step + own * step_stride)
    entry = tl.minimum(entry, positions - 1)
    tl.store(kept + (own * positions + entry) * CODES + group, code.to(tl.int16), mask=inside)
    tl.store(current + own * CODES + group, code, mask=inside)
    drawn = tl.load(codes + stream * CODES)
    tl.store(seen + own * ids + drawn, 1)
    tl.store(stop + own, (drawn == end).to(tl.int8))
    state = tl.load(hidden + stream * HIDDEN + channel, mask=channel < HIDDEN, other=0.0).to(tl.float32)
    tl.store(finite + own, tl.min((tl.abs(state) < float("inf")).to(tl.int32), 0).to(tl.int8))


@triton.jit(do_not_specialize=["slot", "position", "step", "position_stride", "step_stride", "scratch"])
def _store_hidden_kernel(
    slot,
    hidden,
    kept,
    position,
    step,
    position_stride,
    step_stride,
    scratch,
    HIDDEN: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    stream = tl.program_id(0)
    channel = tl.arange(0, BLOCK)
    inside = channel < HIDDEN
    wait(OVERLAP)
    own = tl.load(slot + stream)
    tl.store(kept + own * HIDDEN + channel, tl.load(hidden + stream * HIDDEN + channel, mask=inside), mask=inside)
    one = (own != scratch).to(tl.int64)
    at, steps = position + own * position_stride, step + own * step_stride
    tl.store(at, tl.load(at) + one)
    tl.store(steps, tl.load(steps) + one)
