"""The reference for every faster backend, and the backend of a CPU: plain PyTorch with softmax in float32."""

from __future__ import annotations

from torch import Tensor

from voxcpm_grpc.attention.base import HeadNorms, PagedKV, PagedRows, Rotation, RowNorm, normalized, rotated
from voxcpm_grpc.kernels.attention import reference


class ReferenceAttention:
    capturable = False

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
        q, k = rotated(*(q, k) if norms is None else norms(q, k), rotate)
        keys, values = kv.k[layer], kv.v[layer]
        reference.write_kv(k, v, keys, values, rows.write)
        return reference.paged_attention(
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
        q, k, v = normalized(q, k, v, norm)
        q, k = rotated(q, k, rotate)
        return reference.attention(q if wanted is None else q[wanted.start : wanted.stop], k, v)
