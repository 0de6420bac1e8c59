"""The definition of each kernel for VoxCPM alone in plain PyTorch, with the same name and signature. Imports no Triton.

Dimensions: t rows, s sequences, h query heads, g KV heads, d head size, p pages of a sequence.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear, pad, silu

from voxcpm_grpc.kernels.attention.reference import decode_attention
from voxcpm_grpc.kernels.products.reference import linear_add, norm_gated, norm_linear
from voxcpm_grpc.kernels.rows.reference import rms_norm


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
