"""Root mean square norms of each head of queries and keys, in place, in one launch."""

# pyright: reportArgumentType=false, reportCallIssue=false
# A launch passes plain integers for constexpr parameters, which the annotations of triton.jit do not allow.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from voxcpm_grpc.kernels.launch.overlap import chained, launch_next, wait


def norm_heads(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> None:
    """Computes `reference.norm_heads`. The heads of a row are contiguous; q and k may be slices of one projection."""
    rows, heads, size = q.shape
    groups = k.shape[1]
    if any(x.stride()[1:] != (size, 1) for x in (q, k)) or k.shape != (rows, groups, size):
        raise ValueError("q and k must have the same rows, and contiguous heads of one size")
    if not (q_weight.is_contiguous() and k_weight.is_contiguous() and q_weight.shape == k_weight.shape == (size,)):
        raise ValueError(f"the weights must be contiguous and have {size} values")
    _norm_heads_kernel[(rows, 2)](
        q,
        k,
        q_weight,
        k_weight,
        eps,
        q.stride(0),
        k.stride(0),
        HEADS=heads,
        GROUPS=groups,
        BLOCK=triton.next_power_of_2(max(heads, groups)),
        SIZE=size,
        WIDTH=triton.next_power_of_2(size),
        **chained(q.device),
    )


@triton.jit
def _norm_heads_kernel(
    q,
    k,
    q_weight,
    k_weight,
    eps,
    q_row,
    k_row,
    HEADS: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
    SIZE: tl.constexpr,
    WIDTH: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    launch_next(OVERLAP)
    row, keys = tl.program_id(0).to(tl.int64), tl.program_id(1) > 0
    head, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, WIDTH)[None, :]
    weight = tl.load(tl.where(keys, k_weight, q_weight) + column, mask=column < SIZE, other=0.0).to(tl.float32)
    where = tl.where(keys, k + row * k_row, q + row * q_row) + head * SIZE + column
    inside = (head < tl.where(keys, GROUPS, HEADS)) & (column < SIZE)
    wait(OVERLAP)
    wide = tl.load(where, mask=inside, other=0.0).to(tl.float32)
    kind = q.dtype.element_ty
    normalized = (wide * tl.rsqrt(tl.sum(wide * wide, 1)[:, None] / SIZE + eps)).to(kind).to(tl.float32)
    tl.store(where, (normalized * weight).to(kind), mask=inside)
