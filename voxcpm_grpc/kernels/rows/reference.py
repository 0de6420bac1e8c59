"""The definition of each kernel for the rows in plain PyTorch, with the same name and signature. Imports no Triton.

Dimensions: t rows, s sequences, h query heads, g KV heads, d head size, p pages of a sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu


def norm_swiglu(gate_up: Tensor, x: Tensor, eps: float) -> Tensor:
    """`swiglu` of gate_up [t, 2f], which was computed from x [t, c] itself: the norm of x is applied to it here."""
    scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
    return swiglu((gate_up.float() * scale).to(gate_up.dtype))


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Each row of x [t, c], divided by its root mean square and rounded to x's dtype, times weight [c] if given."""
    wide = x.float()
    normalized = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return normalized if weight is None else normalized * weight


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


def norm_heads(q: Tensor, k: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float) -> None:
    """Replace q [t, h, d] and k [t, g, d] by the `rms_norm` of each of their heads, with weights [d]."""
    q.copy_(rms_norm(q, q_weight, eps))
    k.copy_(rms_norm(k, k_weight, eps))
