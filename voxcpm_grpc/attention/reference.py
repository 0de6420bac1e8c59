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
        groups = k.shape[2]
        out = _attention(_group(q, groups), k.transpose(1, 2), v.transpose(1, 2), None)
        return _ungroup(out, q.shape[1])


def _attend_decode(q: Tensor, keys: Tensor, values: Tensor, page_size: int, rows: PagedRows) -> Tensor:
    """One row per sequence: all of them in one call, padded to the longest context."""
    pages = rows.block_table.shape[1]
    # Reading the longest context would stall a GPU, where the bound does; on a CPU it saves the padding.
    longest = int(rows.context.max()) if q.device.type == "cpu" else rows.max_context
    position = torch.arange(min(longest, pages * page_size), device=q.device)
    inside = position < rows.context[:, None]  # [s, n]
    # Positions past the context read its last one: what lies in the pages there may be NaN, which no mask stops.
    position = position.minimum(rows.context[:, None] - 1).clamp(min=0)
    page = rows.block_table.gather(1, position // page_size)
    index = (page * page_size + position % page_size).flatten()
    shape = (*inside.shape, *keys.shape[1:])
    k = keys.index_select(0, index).view(shape).transpose(1, 2)  # [s, g, n, d]
    v = values.index_select(0, index).view(shape).transpose(1, 2)
    out = _attention(_group(q[:, None], keys.shape[1]), k, v, inside[:, None, None])
    return _ungroup(out, 1)[:, 0]


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
        if n == context:  # nothing cached: the new rows are everything
            ki, vi = k[span], v[span]
        else:
            position = torch.arange(context, device=q.device)
            index = rows.block_table[i, position // page_size] * page_size + position % page_size
            ki, vi = keys.index_select(0, index), values.index_select(0, index)
        groups, repeat = ki.shape[1], q.shape[1] // ki.shape[1]
        causal = torch.ones(n, context, dtype=torch.bool, device=q.device).tril(context - n)
        grouped = _attention(
            _group(q[None, span], groups), ki.transpose(0, 1)[None], vi.transpose(0, 1)[None], causal.repeat(repeat, 1)
        )
        out[span] = _ungroup(grouped, n)[0]
    return out


def _attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """q [b, g, m, d] over k, v [b, g, n, d] in float32; mask is True where a query sees a key. Returns q's type."""
    return scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask).to(q.dtype)


def _group(q: Tensor, groups: int) -> Tensor:
    """[b, n, h, d] -> [b, g, (h / g) * n, d]: the heads that share keys become rows, so keys are never repeated."""
    b, n, h, d = q.shape
    return q.view(b, n, groups, h // groups, d).permute(0, 2, 3, 1, 4).reshape(b, groups, -1, d)


def _ungroup(out: Tensor, n: int) -> Tensor:
    """The inverse of `_group`: [b, g, r * n, d] -> [b, n, g * r, d]."""
    b, groups, _, d = out.shape
    return out.view(b, groups, -1, n, d).permute(0, 3, 1, 2, 4).reshape(b, n, -1, d)


def _flat(pages: Tensor) -> Tensor:
    """[pages, page_size, g, d] -> [pages * page_size, g, d], never a copy."""
    return pages.view(-1, *pages.shape[2:])
