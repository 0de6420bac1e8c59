"""This project's kernels, over the paged cache and inside short sequences. Longer sequences use PyTorch's attention.

They are Triton's, and on Hopper for the heads of the released models also kernels in CUDA C++, where those are faster.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from voxcpm_grpc.attention.base import HeadNorms, PagedKV, PagedRows, Rotation, RowNorm, normalized, rotated
from voxcpm_grpc.kernels.attention import context_attention, patch_attention
from voxcpm_grpc.kernels.attention.decode_attention import decode_attention
from voxcpm_grpc.kernels.attention.kv_write import rope_write_kv, write_kv
from voxcpm_grpc.kernels.attention.local_attention import MAX_TOKENS, local_attention
from voxcpm_grpc.kernels.attention.paged_attention import paged_attention
from voxcpm_grpc.kernels.rows.head_norms import norm_heads


class TritonAttention:
    capturable = True

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
        keys, values = kv.k[layer], kv.v[layer]
        cos, sin = (None, None) if rotate is None else (rotate.cos[:, 0], rotate.sin[:, 0])
        if rows.max_rows == 1 and q.shape[0] == rows.context.shape[0]:
            paged = keys, values, rows.context, rows.block_table, rows.write
            cut = None if norms else context_attention.find_cut(q, k, v, cos, keys, values)
            if cut is not None:
                return context_attention.context_attention(q, k, v, cos, sin, *paged, cut, first=layer == 0)
            gains, eps = (None, 0.0) if norms is None else ((norms.q, norms.k), norms.eps)
            first = layer == 0
            return decode_attention(q, k, v, cos, sin, *paged, rows.max_context, gains=gains, eps=eps, first=first)
        if norms:
            norm_heads(q, k, norms.q, norms.k, norms.eps)
        if cos is None or sin is None:
            write_kv(k, v, keys, values, rows.write)
        else:
            q = rope_write_kv(q, k, v, cos, sin, keys, values, rows.write)
        return paged_attention(
            q, keys, values, rows.cu_seqlens, rows.context, rows.block_table, rows.max_rows, rows.max_context
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
        if len(q) <= MAX_TOKENS:
            cos, sin = (None, None) if rotate is None else (rotate.cos.flatten(1), rotate.sin.flatten(1))
            late = {} if norm is None else {"rows": norm.x, "eps": norm.eps}
            cut = patch_attention.find_cut(q, k, v, cos, late.get("rows"))
            if cut is not None:
                return patch_attention.patch_attention(q, k, v, cos, sin, cut, **late, wanted=wanted)
            return local_attention(q, k, v, cos, sin, **late, wanted=wanted)
        q, k, v = normalized(q, k, v, norm)
        q, k = rotated(q, k, rotate)
        q = q if wanted is None else q[wanted.start : wanted.stop]
        q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, enable_gqa=True).permute(2, 0, 1, 3)
