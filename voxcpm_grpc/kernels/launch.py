"""What the fused kernels share: the device's size, and launches that overlap the kernel before.

On Hopper and later a kernel may start while the one before still runs, fetch what no kernel writes, its weights, into
the cache, and wait only then. Every kernel of such a chain waits before it touches anything else and before it ends,
so that the end of one means the end of all before it.
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
    """Whether kernels on this device can start before the one ahead has ended."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def chained(device: torch.device) -> dict[str, bool]:
    """Arguments of a launch whose kernel waits by itself for the one ahead, where the device can do that."""
    overlap = overlaps(device)
    return {"OVERLAP": overlap} | ({"launch_pdl": True} if overlap else {})


@triton.jit
def launch_next(OVERLAP: tl.constexpr):
    """Let the next kernel start: it will wait for the end of this one."""
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait(OVERLAP: tl.constexpr):
    """Return once everything before is in memory."""
    if OVERLAP:
        gdc_wait()


@triton.jit
def prefetch_rows(matrix, row, stride, COUNT: tl.constexpr):
    """Have the first COUNT elements of these rows of a matrix brought into the L2 cache, a line of 128 bytes each."""
    LINE: tl.constexpr = 128 // (matrix.dtype.element_ty.primitive_bitwidth // 8)
    where = row[:, None] * stride + tl.arange(0, COUNT // LINE)[None, :] * LINE
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; // $0", "=r,l", [matrix + where], dtype=tl.int32, is_pure=False, pack=1
    )
