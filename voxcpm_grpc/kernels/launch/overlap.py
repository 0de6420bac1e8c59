"""Launches that overlap with the previous kernel, and the device's size.

On Hopper and later GPUs a kernel can start while the previous one still runs. It first loads data that no kernel
writes, such as weights, and then waits for the previous kernel. Every kernel of such a chain waits before it accesses
anything else and before it ends, so that the end of a kernel implies the end of all kernels before it.

A kernel that is `late` lets the next one start only after its own wait. Then the next one may read, without a wait,
what was complete before the late kernel, and run beside it. It writes to memory that was allocated before the late
kernel, so that no kernel still uses it, and waits before it ends.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


@functools.cache
def overlaps(device: torch.device) -> bool:
    """True if a kernel on this device can start before the previous one has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def chained(device: torch.device) -> dict[str, bool]:
    """Arguments of a launch whose kernel waits for the previous one by itself, if the device supports that."""
    overlap = overlaps(device)
    return {"OVERLAP": overlap} | ({"launch_pdl": True} if overlap else {})


@triton.jit
def launch_next(OVERLAP: tl.constexpr):
    """Allow the next kernel to start. It waits for the end of this one."""
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait(OVERLAP: tl.constexpr):
    """Wait until all previous kernels have ended and their results are in memory."""
    if OVERLAP:
        gdc_wait()


@triton.jit
def prefetch_rows(matrix, row, stride, COUNT: tl.constexpr):
    """Load the first COUNT elements of these rows of a matrix into the L2 cache, in lines of 128 bytes."""
    LINE: tl.constexpr = 128 // (matrix.dtype.element_ty.primitive_bitwidth // 8)
    where = row[:, None] * stride + tl.arange(0, COUNT // LINE)[None, :] * LINE
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0", "=r,l", [matrix + where], dtype=tl.int32, is_pure=False, pack=1
    )
