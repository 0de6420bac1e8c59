"""Writes the keys and values of a step into their pages, and rotates keys and queries if the model does."""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import launch_next, overlaps, wait


def write_kv(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, write: Tensor) -> None:
    """Computes `reference.write_kv`."""
    _check(k, v, k_pages, v_pages)
    rows, groups, size = k.shape
    overlap = overlaps(k.device)
    _write_kv_kernel[(rows,)](
        k,
        v,
        k_pages,
        v_pages,
        write,
        k.stride(0),
        v.stride(0),
        k_pages.stride(1),
        COUNT=groups * size,
        BLOCK=triton.next_power_of_2(groups * size),
        OVERLAP=overlap,
        **({"launch_pdl": True} if overlap else {}),
    )


def rope_write_kv(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    write: Tensor,
) -> Tensor:
    """Computes `reference.rope_write_kv` in one launch."""
    _check(k, v, k_pages, v_pages)
    rows, heads, size = q.shape
    groups = k.shape[1]
    if q.stride()[1:] != (size, 1) or not cos.is_contiguous() or not sin.is_contiguous():
        raise ValueError("cos, sin and the heads of q must be contiguous")
    out = torch.empty(rows, heads, size, dtype=q.dtype, device=q.device)
    overlap = overlaps(q.device)
    _rope_write_kv_kernel[(rows,)](
        q,
        k,
        v,
        cos,
        sin,
        out,
        k_pages,
        v_pages,
        write,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        k_pages.stride(1),
        HEADS=heads,
        GROUPS=groups,
        HALF=size // 2,
        HEAD_BLOCK=triton.next_power_of_2(heads),
        GROUP_BLOCK=triton.next_power_of_2(groups),
        HALF_BLOCK=triton.next_power_of_2(size // 2),
        BLOCK=triton.next_power_of_2(groups * size),
        OVERLAP=overlap,
        **({"launch_pdl": True} if overlap else {}),
    )
    return out


def _check(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor) -> None:
    """Raise ValueError unless rows of k and v have g * d contiguous elements and all slots of pages are contiguous."""
    size = k.shape[2]
    if k.stride()[1:] != (size, 1) or v.stride()[1:] != (size, 1):
        raise ValueError(f"the heads of k and v must be contiguous, their strides are {k.stride()} and {v.stride()}")
    if not k_pages.is_contiguous() or not v_pages.is_contiguous():
        raise ValueError(
            "k_pages and v_pages must be contiguous: pass one layer of the cache, not a slice of its pages"
        )


# The alignment of a view is not specialized: a compilation would stall every stream.
@triton.jit(do_not_specialize=["write"])
def _write_kv_kernel(
    k,
    v,
    k_pages,
    v_pages,
    write,
    k_row,
    v_row,
    slot_stride,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(write + row)
    element = tl.arange(0, BLOCK)
    inside = element < COUNT
    tl.store(k_pages + slot * slot_stride + element, tl.load(k + row * k_row + element, mask=inside), mask=inside)
    tl.store(v_pages + slot * slot_stride + element, tl.load(v + row * v_row + element, mask=inside), mask=inside)


@triton.jit(do_not_specialize=["write"])
def _rope_write_kv_kernel(
    q,
    k,
    v,
    cos,
    sin,
    out,
    k_pages,
    v_pages,
    write,
    q_row,
    k_row,
    v_row,
    slot_stride,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    HALF: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    wait(OVERLAP)
    SIZE: tl.constexpr = HALF * 2
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(write + row) * slot_stride
    column = tl.arange(0, HALF_BLOCK)
    c = tl.load(cos + row * HALF + column, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + row * HALF + column, mask=column < HALF, other=0.0).to(tl.float32)[None, :]
    _rotate(q + row * q_row, out + row * (HEADS * SIZE), c, s, HEADS, HALF, HEAD_BLOCK, HALF_BLOCK)
    _rotate(k + row * k_row, k_pages + slot, c, s, GROUPS, HALF, GROUP_BLOCK, HALF_BLOCK)
    element = tl.arange(0, BLOCK)
    inside = element < GROUPS * SIZE
    tl.store(v_pages + slot + element, tl.load(v + row * v_row + element, mask=inside), mask=inside)


@triton.jit
def _rotate(
    source, target, c, s, HEADS: tl.constexpr, HALF: tl.constexpr, HEAD_BLOCK: tl.constexpr, HALF_BLOCK: tl.constexpr
):
    """(a, b) -> (a c - b s, b c + a s) for the halves a, b of each head."""
    head = tl.arange(0, HEAD_BLOCK)[:, None]
    column = tl.arange(0, HALF_BLOCK)[None, :]
    inside = (head < HEADS) & (column < HALF)
    where = head * (2 * HALF) + column
    a = tl.load(source + where, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(source + where + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(target + where, (a * c - b * s).to(target.dtype.element_ty), mask=inside)
    tl.store(target + where + HALF, (b * c + a * s).to(target.dtype.element_ty), mask=inside)
