"""The truth every faster backend is measured against, and what serves a CPU: plain PyTorch, softmax in float32."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from voxcpm_grpc.attention.base import PagedKV, PagedRows


class ReferenceAttention:
    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, kv: PagedKV, rows: PagedRows) -> Tensor:
        keys, values = _flat(kv.k[layer]), _flat(kv.v[layer])
        keys.index_copy_(0, rows.write, k)
        values.index_copy_(0, rows.write, v)
        if rows.max_rows == 1 and q.shape[0] == rows.context.shape[0]:
            return _attend_decode(q, keys, values, kv.page_size, rows)
        return _attend_chunks(q, k, v, keys, values, kv.page_size, rows)

    def attend_full(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _attention(q, k, v, None)


def _attend_decode(q: Tensor, keys: Tensor, values: Tensor, page_size: int, rows: PagedRows) -> Tensor:
    """One row per sequence: all of them in one call, padded to the longest context."""
    # Reading the longest context would stall a GPU, where the bound does; on a CPU it saves the padding.
    longest = int(rows.context.max()) if q.device.type == "cpu" else rows.max_context
    table = rows.block_table[:, : -(-longest // page_size)]
    offset = torch.arange(page_size, device=q.device)
    slot = (table[:, :, None] * page_size + offset).flatten(1)  # [s, n]
    inside = torch.arange(slot.shape[1], device=q.device) < rows.context[:, None]
    # Past its context a sequence reads its first position: what lies there may be NaN, which no mask stops.
    slot = torch.where(inside, slot, slot[:, :1]).flatten()
    shape = (*inside.shape, *keys.shape[1:])
    k = keys.index_select(0, slot).view(shape).transpose(1, 2)  # [s, g, n, d]
    v = values.index_select(0, slot).view(shape).transpose(1, 2)
    # The heads that share keys become rows of one matrix, so keys are never repeated.
    grouped = q.view(q.shape[0], keys.shape[1], -1, q.shape[2])  # [s, g, h / g, d]
    out = scaled_dot_product_attention(grouped.float(), k.float(), v.float(), attn_mask=inside[:, None, None])
    return out.reshape(q.shape).to(q.dtype)


def _attend_chunks(
    q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, page_size: int, rows: PagedRows
) -> Tensor:
    """Several rows per sequence: one sequence after another."""
    starts, contexts = rows.cu_seqlens.tolist(), rows.context.tolist()
    out = torch.zeros_like(q)
    for i, context in enumerate(contexts):
        span = slice(starts[i], starts[i + 1])
        n = span.stop - span.start
        if n == 0:
            continue
        ki, vi = k[span], v[span]
        if n < context:  # part of the context was cached by earlier steps
            position = torch.arange(context, device=q.device)
            slot = rows.block_table[i, position // page_size] * page_size + position % page_size
            ki, vi = keys.index_select(0, slot), values.index_select(0, slot)
        causal = torch.ones(n, context, dtype=torch.bool, device=q.device).tril(context - n)
        out[span] = _attention(q[None, span], ki[None], vi[None], causal)[0]
    return out


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q [b, n, h, d] over k, v [b, m, g, d] in float32 -> [b, n, h, d] of q's type; mask [n, m] is True where seen."""
    q32, k32, v32 = (x.transpose(1, 2).float() for x in (q, k, v))
    return scaled_dot_product_attention(q32, k32, v32, attn_mask=mask, enable_gqa=True).transpose(1, 2).to(q.dtype)


def _flat(pages: Tensor) -> Tensor:
    """[pages, page_size, g, d] -> [pages * page_size, g, d], never a copy."""
    return pages.view(-1, *pages.shape[2:])
