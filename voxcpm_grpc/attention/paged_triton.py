"""Our Triton kernels over the paged cache; what is short and not cached goes to PyTorch's own fused attention."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from voxcpm_grpc.attention.base import PagedKV, PagedRows
from voxcpm_grpc.kernels.attention import paged_attention
from voxcpm_grpc.kernels.store import store_kv


class TritonAttention:
    capturable = True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, kv: PagedKV, rows: PagedRows) -> Tensor:
        keys, values = kv.k[layer], kv.v[layer]
        store_kv(k, v, keys, values, rows.write)
        return paged_attention(
            q, keys, values, rows.cu_seqlens, rows.context, rows.block_table, rows.max_rows, rows.max_context
        )

    def attend_full(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)
