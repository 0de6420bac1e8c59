"""The definition of each kernel for attention in plain PyTorch, with the same name and signature. Imports no Triton.

Dimensions: t rows, s sequences, h query heads, g KV heads, d head size, p pages of a sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from voxcpm_grpc.kernels.rows.reference import late_norm, rms_norm, rotate


def write_kv(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, write: Tensor) -> None:
    """Write row r of k and v [t, g, d] to slot write[r], page * page_size + offset, of [pages, page_size, g, d]."""
    _slots(k_pages).index_copy_(0, write, k)
    _slots(v_pages).index_copy_(0, write, v)


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    cu_seqlens: Tensor,
    context: Tensor,
    block_table: Tensor,
    max_rows: int,
    max_context: int,
) -> Tensor:
    """Causal attention of the last rows of each sequence, q [t, h, d], over its paged context, with softmax in float32.

    cu_seqlens [s + 1] bounds the rows of each sequence, context [s] counts its positions, block_table [s, p] lists its
    pages. Returns [t, h, d] in q's dtype. Slots past a context are not read; they may hold NaN.
    """
    if max_rows == 1 and q.shape[0] == context.shape[0]:
        return _one_row_each(q, k_pages, v_pages, context, block_table, max_context)
    keys, values, page_size = _slots(k_pages), _slots(v_pages), k_pages.shape[1]
    starts = cu_seqlens.tolist()
    out = torch.zeros_like(q)
    for i, n in enumerate(context.tolist()):
        span = slice(starts[i], starts[i + 1])
        rows = span.stop - span.start
        if rows == 0:
            continue
        position = torch.arange(n, device=q.device)
        slot = block_table[i, position // page_size] * page_size + position % page_size
        k, v = keys.index_select(0, slot), values.index_select(0, slot)
        seen = torch.ones(rows, n, dtype=torch.bool, device=q.device).tril(n - rows)
        out[span] = attention(q[span, None], k[:, None], v[:, None], seen)[:, 0]
    return out


def _one_row_each(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, context: Tensor, block_table: Tensor, max_context: int
) -> Tensor:
    """Decode of all sequences in one call, padded to the longest context, without a Python loop over sequences."""
    page_size = k_pages.shape[1]
    # On a GPU, reading the longest context would wait for the device, so its bound is used. On a CPU it saves padding.
    longest = int(context.max()) if q.device.type == "cpu" else max_context
    table = block_table[:, : max(1, -(-longest // page_size))]
    slot = (table[:, :, None] * page_size + torch.arange(page_size, device=q.device)).flatten(1)  # [s, n]
    seen = torch.arange(slot.shape[1], device=q.device) < context[:, None]
    # A masked position reads the first position instead: its own slot may hold NaN, which a mask does not remove.
    slot = torch.where(seen, slot, slot[:, :1]).flatten()
    shape = (*seen.shape, *k_pages.shape[2:])
    k = _slots(k_pages).index_select(0, slot).view(shape).transpose(1, 2)  # [s, g, n, d]
    v = _slots(v_pages).index_select(0, slot).view(shape).transpose(1, 2)
    # The heads that share keys become rows of one matrix, so keys are not repeated.
    grouped = q.view(q.shape[0], k.shape[1], -1, q.shape[2])  # [s, g, h / g, d]
    out = scaled_dot_product_attention(grouped.float(), k.float(), v.float(), attn_mask=seen[:, None, None])
    return out.reshape(q.shape).to(q.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """q [n, b, h, d] over k, v [m, b, g, d] in float32 -> [n, b, h, d] in q's dtype; seen [n, m] is a mask or None."""
    q32, k32, v32 = (x.permute(1, 2, 0, 3).float() for x in (q, k, v))
    out = scaled_dot_product_attention(q32, k32, v32, attn_mask=seen, enable_gqa=True)
    return out.permute(2, 0, 1, 3).to(q.dtype)


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
    """Rotate q [t, h, d] and k [t, g, d], write k and v as `write_kv` does, and return the rotated q.

    cos and sin [t, d / 2] belong to the position of each row. The rotation is by halves, in float32, and rounds once.
    """

    write_kv(rotate(k, cos, sin), v, k_pages, v_pages, write)
    return rotate(q, cos, sin)


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    k_pages: Tensor,
    v_pages: Tensor,
    context: Tensor,
    block_table: Tensor,
    write: Tensor,
    max_context: int,
    *,
    gains: tuple[Tensor, Tensor] | None = None,
    eps: float = 0.0,
) -> Tensor:
    """Write one new row of each sequence as `rope_write_kv` does, then `paged_attention` of q [s, h, d] over each
    context.

    The context includes the new row. With gains [d] of queries and of keys, `rms_norm` is applied to each head first.
    Nothing is rotated if cos and sin are None. A context of 0 gives zeros.
    """
    if gains is not None:
        q, k = rms_norm(q, gains[0], eps), rms_norm(k, gains[1], eps)
    if cos is None or sin is None:
        write_kv(k, v, k_pages, v_pages, write)
    else:
        q = rope_write_kv(q, k, v, cos, sin, k_pages, v_pages, write)
    starts = torch.arange(len(q) + 1, device=q.device)
    return paged_attention(q, k_pages, v_pages, starts, context, block_table, 1, max_context)


def local_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor | None,
    sin: Tensor | None,
    *,
    rows: Tensor | None = None,
    eps: float = 0.0,
    wanted: range | None = None,
) -> Tensor:
    """Bidirectional attention inside each sequence, q [n, b, h, d] over k, v [n, b, g, d] -> [n, b, h, d].

    q and k are first rotated by halves with cos and sin [n, d / 2] of each token, unless None. Softmax is float32. With
    `rows` [n * b, c], q, k and v were computed from these rows without their norm, which is applied here. `wanted` is a
    range of tokens to compute; None computes all. The result holds these tokens only.
    """
    if rows is not None:
        q, k, v = (late_norm(x, rows, eps) for x in (q, k, v))
    if cos is not None and sin is not None:
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
    return attention(q if wanted is None else q[wanted.start : wanted.stop], k, v)


def _slots(pages: Tensor) -> Tensor:
    """[pages, page_size, g, d] as a view [pages * page_size, g, d]."""
    return pages.view(-1, *pages.shape[2:])
