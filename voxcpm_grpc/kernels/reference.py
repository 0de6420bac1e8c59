"""The definition of each kernel in plain PyTorch, with the same name and signature. Imports no Triton.

Dimensions: t rows, s sequences, h query heads, g KV heads, d head size, p pages of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, scaled_dot_product_attention, silu


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
) -> Tensor:
    """Write one new row of each sequence as `rope_write_kv` does, then `paged_attention` of q [s, h, d] over each
    context.

    The context includes the new row. Nothing is rotated if cos and sin are None. A context of 0 gives zeros.
    """
    if cos is None or sin is None:
        write_kv(k, v, k_pages, v_pages, write)
    else:
        q = rope_write_kv(q, k, v, cos, sin, k_pages, v_pages, write)
    starts = torch.arange(len(q) + 1, device=q.device)
    return paged_attention(q, k_pages, v_pages, starts, context, block_table, 1, max_context)


def norm_linear(x: Tensor, eps: float, weight: Tensor) -> Tensor:
    """Each row of x [t, c], divided by its root mean square, times weight [o, c] -> [t, o]. Sums are float32."""
    return linear(rms_norm(x, None, eps), weight)


def norm_gated(x: Tensor, eps: float, weight: Tensor) -> Tensor:
    """silu(gate) * up of `norm_linear` with weight [2f, c], gate first -> [t, f]."""
    return swiglu(norm_linear(x, eps, weight))


def norm_swiglu(gate_up: Tensor, x: Tensor, eps: float) -> Tensor:
    """`swiglu` of gate_up [t, 2f], which was computed from x [t, c] itself: the norm of x is applied to it here."""
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return swiglu((gate_up.float() * scale).to(gate_up.dtype))


def linear_add(x: Tensor, weight: Tensor, residual: Tensor, scale: float) -> Tensor:
    """residual [t, o] + scale * (x [t, c] times weight [o, c])."""
    return residual + scale * linear(x, weight)


def decode_layers(
    x: Tensor,
    layers: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]],
    norm: Tensor,
    eps: float,
    scale: float,
    cos: Tensor | None,
    sin: Tensor | None,
    k_pages: Tensor,
    v_pages: Tensor,
    context: Tensor,
    block_table: Tensor,
    write: Tensor,
) -> Tensor:
    """One new row of each sequence, x [s, c], through the layers of a language model and the norm behind them.

    A layer is its weights of q, k, v, of the output of attention, of gate, up, and of down, and has the pages of the
    same index. The other arguments are those of `decode_attention`.
    """
    (g, d), heads = k_pages.shape[-2:], layers[0][1].shape[1] // k_pages.shape[-1]
    where = context, block_table, write, int(context.max())
    for i, (qkv, out, gate_up, down) in enumerate(layers):
        q, k, v = norm_linear(x, eps, qkv).view(len(x), -1, d).split([heads, g, g], dim=1)
        mixed = decode_attention(q, k, v, cos, sin, k_pages[i], v_pages[i], *where)
        x = linear_add(mixed.flatten(1), out, x, scale)
        x = linear_add(norm_gated(x, eps, gate_up), down, x, scale)
    return rms_norm(x, norm, eps)


def dequantize(weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight [o, c] in 8 bits times its scale [o], computed in float32 and rounded to `dtype`."""
    return (weight.float() * weight_scale[:, None]).to(dtype)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Each row of x [t, c], divided by its root mean square and rounded to x's dtype, times weight [c] if given."""
    wide = x.float()
    normalized = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return normalized if weight is None else normalized * weight


def add_low_rank(
    out: Tensor,
    x: Tensor,
    adapter: Tensor,
    down: Tensor,
    up: Tensor,
    parts: Sequence[int],
    *,
    norm: Tensor | None = None,
    eps: float | None = None,
    scale: float = 1.0,
) -> None:
    """Add scale * up[p] (down[p] x) to each row of out [t, o], in place, where p is adapter[r % s] of row r.

    adapter is int64 [s], of s sequences whose rows stand token by token. A negative p adds nothing. down
    [places, parts, r, i] has a map to the low rank r for each of the consecutive parts of the outputs, which have the
    sizes `parts`; up is [places, o, r]. x [t, i] is first divided by its root mean square if eps is given, and
    multiplied with norm [i] if that is given.
    """
    if eps is not None:
        x = rms_norm(x, None, eps)
    if norm is not None:
        x = x * norm
    adapter = adapter.repeat(len(x) // len(adapter))
    for place in adapter.unique().tolist():
        if place < 0:
            continue
        rows = (adapter == place).nonzero()[:, 0]
        low = linear(x[rows], down[place].flatten(0, 1)).split(down.shape[2], dim=1)
        made = [linear(each, matrix) for each, matrix in zip(low, up[place].split(list(parts)), strict=True)]
        out.index_add_(0, rows, torch.cat(made, dim=1), alpha=scale)


def flow_rows(x: Tensor, weight: Tensor, bias: Tensor, mu: Tensor, time: Tensor, condition: Tensor) -> Tensor:
    """The input sequences of an evaluation, [n, 2b, e]: mu (zeros in the second half), time, condition and x.

    x float32 [b, P, D], the new patch, is mapped with weight [e, D] and bias [e]. mu [b, m, e] is the output of the
    language models, time [e] the time token, condition [b, P, e] the mapped previous patch. With one mu token the time
    token is added to it, and n = 1 + 2P; else n = m + 1 + 2P.
    """
    time = time.expand(len(mu), 1, -1)
    patches = [condition, linear(x.to(weight.dtype), weight, bias)]
    halves = mu, torch.zeros_like(mu)
    first = [[half + time] if mu.shape[1] == 1 else [half, time] for half in halves]
    return torch.cat([torch.cat([*rows, *patches], dim=1) for rows in first]).transpose(0, 1)


def flow_step(
    rows: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor, x: Tensor, sizes: Tensor, i: int, cfg: Tensor
) -> Tensor:
    """x float32 [b, P, D] after an Euler step of size sizes[i] with guidance cfg [b].

    rows [P, 2b, e] are the outputs for the new patch. Normalized with weights norm [e] and mapped with weight [D, e]
    and bias [D] they give the velocity. The unconditional velocity is scaled to the best fit of the conditional one.
    """
    velocity = linear(rms_norm(rows, norm, eps), weight, bias)
    c, u = velocity.float().transpose(0, 1).chunk(2)
    u = u * ((c * u).sum((1, 2), keepdim=True) / (u.square().sum((1, 2), keepdim=True) + 1e-8))
    return x - sizes[i] * (u + cfg[:, None, None] * (c - u))


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


def late_norm(mapped: Tensor, rows: Tensor, eps: float) -> Tensor:
    """Apply the root mean square norm of rows [t, c] to `mapped` [..., h, d], a linear map of these rows.

    Computes in float32 and rounds once.
    """
    scale = torch.rsqrt(rows.float().square().mean(-1) + eps)
    return (mapped.float() * scale.view(*mapped.shape[:-2], 1, 1)).to(mapped.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [t, ..., h, d] by halves with cos and sin [t, d / 2], in float32, rounded once."""
    a, b = x.float().chunk(2, dim=-1)
    c, s = (table.float().view(len(x), *[1] * (x.ndim - 2), -1) for table in (cos, sin))
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1).to(x.dtype)


def swiglu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up of gate_up [t, 2c], gate first -> [t, c]. silu is float32 and is rounded before the product."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate.float()).to(gate.dtype) * up


def _slots(pages: Tensor) -> Tensor:
    """[pages, page_size, g, d] as a view [pages * page_size, g, d]."""
    return pages.view(-1, *pages.shape[2:])


def locate_rows(
    slot: Tensor, position: Tensor, block_table: Tensor, page_size: int, pages: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The next row of these slots [b] in the KV cache, from the positions [n] and the pages [n, m] of all slots.

    Returns the position int64 [b], the context with this row int32 [b], the first `pages` pages int32 [b, p], the slot
    to write, page * page_size + offset, int64 [b], and the bounds of one row each, int32 [b + 1].
    """
    at = position[slot]
    write = block_table[slot, at // page_size].long() * page_size + at % page_size
    starts = torch.arange(len(slot) + 1, dtype=torch.int32, device=slot.device)
    return at, (at + 1).int(), block_table[slot, :pages], write, starts


def read_patch(slot: Tensor, condition: Tensor, cfg: Tensor) -> tuple[Tensor, Tensor]:
    """The last patches [b, P, D] and the guidance [b] of these slots, out of those of all slots."""
    return condition[slot], cfg[slot]


def read_step(
    slot: Tensor, position: Tensor, condition: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The last patches [b, P, D] of these slots, and the entries [b, ...] of tables of rotations at positions [b].

    Positions past the tables, of padding rows only, read their last entry.
    """
    at = position.clamp(max=len(cos) - 1)
    return condition[slot], cos[at], sin[at]


def pack_frame(audio: Tensor, slot: Tensor, stop: Tensor, finite: Tensor, patch: Tensor) -> Tensor:
    """The audio [b, samples] with more columns, float32: `stop` of its slots, whether all of it is finite, 1, `patch`.

    It is finite if `finite` is True for its slot. 1 tells that there is audio. The last columns are bytes of `patch`.
    """
    whole = audio.isfinite().all(1) & finite[slot]
    spoken, content = torch.ones(len(audio), 1, device=audio.device), patch[slot].flatten(1).view(torch.uint8)
    content = pad(content, (0, -content.shape[1] % 4)).view(torch.float32)
    return torch.cat([audio.float(), stop[slot, None], whole[:, None], spoken, content], dim=1)


def conditioning(
    slot: Tensor,
    semantic: Tensor,
    acoustic: Tensor,
    from_semantic: tuple[Tensor, Tensor],
    from_acoustic: tuple[Tensor, Tensor],
    stop: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """Maps of the hidden states of these slots, out of those of all slots, [n, c] each. A map is a weight and a bias.

    The first two maps give the mu tokens [b, 2, e]. The SiLU of the third one is the input of the stop head, [b, o].
    """
    heard, wanted = semantic[slot], acoustic[slot]
    mu = torch.stack([linear(heard, *from_semantic), linear(wanted, *from_acoustic)], dim=1)
    return mu, silu(linear(heard, *stop))


def quantize(x: Tensor, scale: int) -> Tensor:
    """The hyperbolic tangent of x, rounded to multiples of 1 / scale."""
    return torch.round(torch.tanh(x) * scale) / scale


def store_patch(
    latents: Tensor,
    stopping: Tensor,
    stop_head: Tensor,
    slot: Tensor,
    patches: Tensor,
    step: Tensor,
    condition: Tensor,
    stop: Tensor,
    finite: Tensor,
    history: Tensor,
    limit: float,
) -> None:
    """Store patches, float32 [b, P, D], and the decisions to stop in the state of their slots [b].

    A patch with a value that is not below `limit` is replaced by zeros, and `finite` [n] becomes False. `condition`
    [n, P, D] has the last patch, and history [n, m, P, D] has it at the index patches [n] + step [n], or in its last
    entry. `stop` [n] is True where the second logit of `stop_head` [2, c], applied to `stopping` [b, c], is larger than
    the first. Of equal slots any may win.
    """
    good = latents.abs().flatten(1).amax(1) < limit
    patch = torch.where(good[:, None, None], latents, 0).to(condition.dtype)
    logits = linear(stopping, stop_head)
    for target, value in ((condition, patch), (stop, logits[:, 1] > logits[:, 0]), (finite, good)):
        target.index_copy_(0, slot, value)
    history[slot, (patches[slot] + step[slot]).clamp(max=history.shape[1] - 1)] = patch.to(history.dtype)


def store_hidden(slot: Tensor, hidden: Sequence[Tensor], kept: Sequence[Tensor], counters: Sequence[Tensor]) -> None:
    """Store two hidden states [b, c] in those of all slots, [n, c], and add one to two counters [n] of slots [b].

    Counters of the last slot, of padding rows, stay. Of equal slots any may win, and their counters may rise by more
    than one.
    """
    one = slot != len(kept[0]) - 1
    for target, value in (*zip(kept, hidden, strict=True), *((counter, counter[slot] + one) for counter in counters)):
        target.index_copy_(0, slot, value)
