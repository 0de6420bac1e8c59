"""Our Triton kernels, over the paged cache and inside short sequences; other sequences take PyTorch's own."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from voxcpm_grpc.attention.base import PagedKV, PagedRows, Rotation, RowNorm, normalized, rotated
from voxcpm_grpc.kernels.attention import paged_attention
from voxcpm_grpc.kernels.decode_attention import decode_attention
from voxcpm_grpc.kernels.local_attention import MAX_TOKENS, local_attention
from voxcpm_grpc.kernels.store import rope_store_kv, store_kv


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
    ) -> Tensor:
        keys, values = kv.k[layer], kv.v[layer]
        cos, sin = (None, None) if rotate is None else (rotate.cos[:, 0], rotate.sin[:, 0])
        if rows.max_rows == 1 and q.shape[0] == rows.context.shape[0]:
            return decode_attention(
                q, k, v, cos, sin, keys, values, rows.context, rows.block_table, rows.write, rows.max_context
            )
        if cos is None or sin is None:
            store_kv(k, v, keys, values, rows.write)
        else:
            q = rope_store_kv(q, k, v, cos, sin, keys, values, rows.write)
        return paged_attention(
            q, keys, values, rows.cu_seqlens, rows.context, rows.block_table, rows.max_rows, rows.max_context
        )

    def attend_full(
        self, q: Tensor, k: Tensor, v: Tensor, rotate: Rotation | None = None, norm: RowNorm | None = None
    ) -> Tensor:
        if q.shape[1] <= MAX_TOKENS:
            cos, sin = (None, None) if rotate is None else (rotate.cos[:, 0], rotate.sin[:, 0])
            late = {} if norm is None else {"rows": norm.x, "eps": norm.eps}
            return local_attention(q, k, v, cos, sin, **late)
        q, k, v = normalized(q, k, v, norm)
        q, k, v = (x.transpose(1, 2) for x in (*rotated(q, k, rotate), v))
        return scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)
