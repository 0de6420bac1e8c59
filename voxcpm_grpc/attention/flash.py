"""flash-attn for contiguous keys and values, Triton kernels for paged ones.

The pages of flash-attn are too large for prefix caching.
"""

from __future__ import annotations

import torch
from flash_attn import flash_attn_func, flash_attn_varlen_func
from torch import Tensor

from voxcpm_grpc.attention.base import HeadNorms, PagedKV, PagedRows, Rotation, RowNorm, normalized, rotated
from voxcpm_grpc.attention.paged_triton import TritonAttention
from voxcpm_grpc.kernels.attention.kv_write import write_kv
from voxcpm_grpc.kernels.attention.local_attention import MAX_TOKENS
from voxcpm_grpc.kernels.rows.head_norms import norm_heads


class FlashAttention:
    """float32, which flash-attn does not support, uses the Triton kernels as well."""

    capturable = True

    def __init__(self) -> None:
        self._paged = TritonAttention()

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer: int,
        kv: PagedKV,
        rows: PagedRows,
        rotate: Rotation | None = None,
        norms: HeadNorms | None = None,
    ) -> Tensor:
        if not rows.fresh or rows.max_rows == 1 or q.dtype == torch.float32:
            return self._paged.attend(q, k, v, layer, kv, rows, rotate, norms)
        if norms:
            norm_heads(q, k, norms.q, norms.k, norms.eps)
        q, k = rotated(q, k, rotate)
        write_kv(k, v, kv.k[layer], kv.v[layer], rows.write)
        return flash_attn_varlen_func(
            q, k, v, rows.cu_seqlens, rows.cu_seqlens, rows.max_rows, rows.max_rows, causal=True
        )

    def attend_full(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotate: Rotation | None = None,
        norm: RowNorm | None = None,
        wanted: range | None = None,
    ) -> Tensor:
        if q.dtype == torch.float32 or len(q) <= MAX_TOKENS:
            return self._paged.attend_full(q, k, v, rotate, norm, wanted)
        q, k, v = normalized(q, k, v, norm)
        q, k = rotated(q, k, rotate)
        q = q if wanted is None else q[wanted.start : wanted.stop]
        return flash_attn_func(*(x.transpose(0, 1) for x in (q, k, v))).transpose(0, 1)
