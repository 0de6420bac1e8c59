"""The definition of each kernel of `streams` and `state`, in plain PyTorch, with the same name and signature.

Dimensions: b streams, T samples, c input channels, n output channels. Samples are rows of contiguous channels. A tensor
may be a window into a larger one. Arithmetic is float32; an output is rounded to the dtype of its tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Snake:
    """x + sin(alpha x)^2 * inverse, per channel; float32 [n]."""

    alpha: Tensor
    inverse: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x + self.inverse * torch.sin(self.alpha * x).square()


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A causal convolution of each channel by itself, followed by a snake activation if there is one."""

    taps: Tensor  # [k, c] float32, oldest sample first
    bias: Tensor  # [c] float32
    dilation: int
    snake: Snake | None = None

    @property
    def reach(self) -> int:
        """Samples before the current one that it reads."""
        return (len(self.taps) - 1) * self.dilation


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A matrix product for each sample, then scale and shift, then a snake activation, if present."""

    weight: Tensor  # [n, c], in the dtype of the input
    bias: Tensor  # [n] float32
    snake: Snake | None
    affine: tuple[Tensor, Tensor] | None = None  # [n] float32, scale and shift


def depthwise(past: Tensor, conv: Depthwise) -> Tensor:
    """past [b, reach + T, c], past samples in front of new ones -> [b, T, c] in the same dtype."""
    samples = past.shape[1] - conv.reach
    out = conv.bias.float()
    for j, tap in enumerate(conv.taps):
        out = out + past[:, j * conv.dilation :][:, :samples].float() * tap
    return (conv.snake(out) if conv.snake else out).to(past.dtype)


def pointwise(x: Tensor, conv: Pointwise, out: Tensor, residual: Tensor | None, keep: bool) -> Tensor | None:
    """x [b, T, c] -> y = W x + bias + residual [b, T, n] float32, which is returned if `keep` is set.

    The activation of y, the input of the next module, is written to `out` [b, T, n].
    """
    y = x.float() @ conv.weight.float().T + conv.bias
    if residual is not None:
        y = y + residual
    scale, shift = conv.affine or (1.0, 0.0)
    x = y * scale + shift
    out.copy_(conv.snake(x) if conv.snake else x)
    return y if keep else None


def depthwise_pointwise(
    past: Tensor, first: Depthwise, second: Pointwise, out: Tensor, residual: Tensor | None, keep: bool
) -> Tensor | None:
    """`pointwise` of `depthwise`."""
    return pointwise(depthwise(past, first), second, out, residual, keep)


def residual_units(
    x: Tensor,
    before: Tensor,
    after: Tensor,
    out: Tensor,
    upsample: Pointwise,
    units: Sequence[tuple[Depthwise, Pointwise]],
    pairs: bool,
) -> None:
    """The residual units behind an upsampling, whose result x [b, T, c] is, without its activation, to `out` [b, T, c].

    before [b, reach of all units, c] holds the past inputs of each unit; those for the next samples go to `after`. With
    `pairs` x [b, 1 + T / 2, 2c] is the input of the upsampling, whose product is part of the computation.
    """
    if pairs:
        y = torch.cat([x[:, :-1], x[:, 1:]], 2).float() @ upsample.weight.float().T + upsample.bias
        x = y.view(out.shape)
    channels = out.shape[2]
    assert upsample.snake is not None
    active = Snake(upsample.snake.alpha[:channels], upsample.snake.inverse[:channels])(x.float()).to(out.dtype)
    residual = x.float()
    start = 0
    for first, second in units:
        past = torch.cat([before[:, start : start + first.reach], active], 1)
        after[:, start : start + first.reach] = past[:, past.shape[1] - first.reach :]
        start += first.reach
        active = torch.empty_like(out)
        kept = depthwise_pointwise(past, first, second, active, residual, True)
        assert kept is not None
        residual = kept
    out.copy_(active)


def mix_down(past: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """past [b, k - 1 + T, c], taps [k, c] -> tanh of the causal convolution into one channel, float32 [b, T]."""
    samples = past.shape[1] - len(taps) + 1
    windows = past.float().unfold(1, len(taps), 1)  # [b, T, c, k]
    return torch.tanh(torch.einsum("btck,kc->bt", windows[:, :samples], taps) + bias)


def load_windows(state: Tensor, slot: Tensor, frames: Tensor, windows: Tensor, runs: Tensor, first: int) -> None:
    """Fill the windows [b, w] of the streams in `slot` [b] with the past input of modules and the new frames [b, T, c].

    state [slots, m] holds the past input. Each row of runs [r, 4] int32 describes contiguous elements: their offset in
    the state, their offset in the windows in front of the new samples, the offset of the elements that will replace
    them at the end of a window, and their count, at most 1024. The frames are written at offset `first`.
    """
    for offset, before, _, count in runs.tolist():
        windows[:, before : before + count] = state[slot, offset : offset + count]
    windows[:, first : first + frames[0].numel()] = frames.flatten(1)


def store_windows(state: Tensor, slot: Tensor, windows: Tensor, runs: Tensor) -> None:
    """Write the ends of the windows back to the state. Arguments as for `load_windows`.

    If several streams share a slot, the slot holds the state of any one of them.
    """
    for offset, _, end, count in runs.tolist():
        state[slot, offset : offset + count] = windows[:, end : end + count]
