"""Copies the convolution state of streams from their slots into the windows that modules read, and back."""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # elements that one program copies


def load_windows(state: Tensor, slot: Tensor, frames: Tensor, windows: Tensor, runs: Tensor, first: int) -> None:
    """Computes `reference.load_windows` for contiguous frames."""
    blocks, count = len(runs), frames[0].numel()
    _load_windows_kernel[(blocks + triton.cdiv(count, BLOCK), len(slot))](
        state,
        slot,
        frames,
        windows,
        runs,
        blocks,
        count,
        first,
        state.stride(0),
        windows.stride(0),
        BLOCK=BLOCK,
    )


def store_windows(state: Tensor, slot: Tensor, windows: Tensor, runs: Tensor) -> None:
    """Computes `reference.store_windows`."""
    _store_windows_kernel[(len(runs), len(slot))](
        state, slot, windows, runs, state.stride(0), windows.stride(0), BLOCK=BLOCK
    )


@triton.jit(do_not_specialize=["slot", "frames", "blocks", "count"])
def _load_windows_kernel(
    state,
    slot,
    frames,
    windows,
    runs,
    blocks,
    count,
    first,
    state_stride,
    window_stride,
    BLOCK: tl.constexpr,
):
    block, stream = tl.program_id(0), tl.program_id(1).to(tl.int64)
    e = tl.arange(0, BLOCK)
    if block < blocks:
        run = runs + block * 4
        old = state + tl.load(slot + stream) * state_stride + tl.load(run)
        inside = e < tl.load(run + 3)
        tl.store(windows + stream * window_stride + tl.load(run + 1) + e, tl.load(old + e, mask=inside), mask=inside)
    else:
        e += (block - blocks) * BLOCK
        new = tl.load(frames + stream * count + e, mask=e < count)
        tl.store(windows + stream * window_stride + first + e, new.to(windows.dtype.element_ty), mask=e < count)


@triton.jit(do_not_specialize=["slot"])
def _store_windows_kernel(
    state,
    slot,
    windows,
    runs,
    state_stride,
    window_stride,
    BLOCK: tl.constexpr,
):
    stream = tl.program_id(1).to(tl.int64)
    run = runs + tl.program_id(0) * 4
    e = tl.arange(0, BLOCK)
    inside = e < tl.load(run + 3)
    x = tl.load(windows + stream * window_stride + tl.load(run + 2) + e, mask=inside)
    tl.store(state + tl.load(slot + stream) * state_stride + tl.load(run) + e, x, mask=inside)
