"""The definition of each kernel of the codec's decoder, in plain PyTorch, with the same name and signature.

Dimensions: b streams, n frames, q quantizers, T samples, c input channels, o output channels, h heads, g KV heads,
d head size, p past frames of the window of attention. Samples are rows of contiguous channels. A tensor may be a window
into a larger one. Arithmetic is float32; an output is rounded to the dtype of its tensor, and what float16 cannot hold
becomes its largest number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.kernels.conv.reference import Snake, load_windows, store_windows

__all__ = [
    "Convolution",
    "Norm",
    "Snake",
    "advance",
    "attend_next",
    "convolve",
    "depthwise_norm",
    "load_windows",
    "look_up",
    "mix_down",
    "store_windows",
]


@dataclass(frozen=True, slots=True)
class Convolution:
    """A dense causal convolution, then an activation of its outputs: a snake, GELU, or none."""

    weight: Tensor  # [o, k, c] in the dtype of the input, oldest sample first
    bias: Tensor  # [o] float32
    dilation: int = 1
    snake: Snake | None = None
    gelu: bool = False

    @property
    def reach(self) -> int:
        """Samples before the current one that it reads."""
        return (self.weight.shape[1] - 1) * self.dilation


@dataclass(frozen=True, slots=True)
class Norm:
    """A layer norm over the channels."""

    weight: Tensor  # [c] float32
    bias: Tensor  # [c] float32
    eps: float


def look_up(codes: Tensor, table: Tensor, out: Tensor) -> None:
    """The sum of the entries of codes [b, n, q], any integers, of a table [q, v, c], to `out` [b, n, c].

    A code that the table does not have stands for the nearest one.
    """
    quantizers, entries, _ = table.shape
    rows = codes.long().clamp(0, entries - 1) + torch.arange(quantizers, device=codes.device) * entries
    out.copy_(_rounded(F.embedding(rows, table.flatten(0, 1)).float().sum(-2), out.dtype))


def convolve(past: Tensor, conv: Convolution, out: Tensor, residual: Tensor | None, keep: bool) -> Tensor | None:
    """past [b, reach + T, c], past samples in front of new ones -> y + residual [b, T, o] float32, if `keep` is set.

    The activation of the sum, the input of the next module, is written to `out` [b, T, o].
    """
    samples, taps = past.shape[1] - conv.reach, conv.weight.shape[1]
    window = torch.stack([past[:, j * conv.dilation :][:, :samples] for j in range(taps)], dim=2)
    y = window.flatten(2).float() @ conv.weight.flatten(1).float().T + conv.bias
    if residual is not None:
        y = y + residual
    active = conv.snake(y) if conv.snake else F.gelu(y) if conv.gelu else y
    out.copy_(_rounded(active, out.dtype))
    return y if keep else None


def depthwise_norm(past: Tensor, taps: Tensor, bias: Tensor, norm: Norm) -> Tensor:
    """The norm of the causal convolution of each channel by itself, [b, T, c] in the dtype of past [b, k - 1 + T, c].

    taps [k, c] and bias [c] are float32.
    """
    samples = past.shape[1] - len(taps) + 1
    y = bias
    for j, tap in enumerate(taps):
        y = y + past[:, j : j + samples].float() * tap
    return F.layer_norm(y, y.shape[-1:], norm.weight, norm.bias, norm.eps).to(past.dtype)


def mix_down(past: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """past [b, k - 1 + T, c], taps [k, c] -> the causal convolution into one channel, from -1 to 1, float32 [b, T]."""
    samples = past.shape[1] - len(taps) + 1
    windows = past.float().unfold(1, len(taps), 1)[:, :samples]  # [b, T, c, k]
    return (torch.einsum("btck,kc->bt", windows, taps) + bias).clamp(-1, 1)


def attend_next(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kv: Tensor,
    layer: int,
    position: Tensor,
    slot: Tensor,
    target: Tensor,
    table: tuple[Tensor, Tensor],
) -> Tensor:
    """Attention of one new frame of each stream to itself and the frames in its ring, [b, h, d].

    q [b, h, d], k and v [b, g, d] are not rotated. kv [slots, layers, 2, p, g, d] has the rings of the streams in
    `slot` [b], as they are behind position [slots]; k and v replace the oldest entries of the rings in `target` [b].
    table: cosine and sine [p + 1, d / 2] float32 of a key by its age in frames.
    """
    past = kv.shape[3]
    at = position[slot]
    age = (at[:, None] - 1 - torch.arange(past, device=q.device)) % past + 1  # [b, p]
    keys, values = (kv[slot, layer, part].float() for part in range(2))
    cos, sin = (part[age][:, :, None] for part in table)  # [b, p, 1, d / 2]
    first, second = keys.chunk(2, dim=-1)
    keys = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    filled = age <= at[:, None]
    keys, values = torch.cat([keys, k[:, None].float()], 1), torch.cat([values, v[:, None].float()], 1)
    values = torch.where(F.pad(filled, (0, 1), value=True)[:, :, None, None], values, 0)
    group = q.shape[1] // k.shape[1]
    scores = torch.einsum("bhd,bphd->bhp", q.float(), keys.repeat_interleave(group, 2)) * q.shape[2] ** -0.5
    scores = scores.masked_fill(~F.pad(filled, (0, 1), value=True)[:, None], -torch.inf)
    out = torch.einsum("bhp,bphd->bhd", scores.softmax(-1), values.repeat_interleave(group, 2)).to(q.dtype)
    for part, new in enumerate((k, v)):
        kv[target, layer, part, at % past] = new
    return out


def advance(position: Tensor, slot: Tensor, target: Tensor, frames: int, past: int) -> None:
    """Write the positions of streams in `slot` [b] behind so many frames to those in `target`. See `WindowTable`."""
    after = position[slot] + frames
    position.index_copy_(0, target, torch.where(after < 2 * past, after, past + after % past))


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in this dtype. NaN stays NaN."""
    largest = torch.finfo(dtype).max
    return x.clamp(-largest, largest).to(dtype)
