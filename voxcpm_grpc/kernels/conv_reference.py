"""What each kernel of `conv` computes, in plain PyTorch under its own name and signature. Imports no Triton.

Letters: b streams, T samples, c channels in, n channels out. Samples are rows of contiguous channels; what follows the
last sample of a stream in memory is free, so a tensor may be a window into a larger one. Arithmetic is float32; what
the next module reads is rounded to the type of the tensor that takes it.
"""

from __future__ import annotations

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
    """A causal convolution of each channel with itself, then a snake if there is one."""

    taps: Tensor  # [k, c] float32, oldest sample first
    bias: Tensor  # [c] float32
    dilation: int
    snake: Snake | None = None

    @property
    def reach(self) -> int:
        """Samples before the present one that it reads."""
        return (len(self.taps) - 1) * self.dilation


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A matrix product per sample, and what its result becomes for the next module: scaled, shifted, snaked."""

    weight: Tensor  # [n, c], of the type that its inputs have
    bias: Tensor  # [n] float32
    snake: Snake
    affine: tuple[Tensor, Tensor] | None = None  # scale and shift, [n] float32


def depthwise(past: Tensor, conv: Depthwise) -> Tensor:
    """past [b, reach + T, c], what is remembered before what is new -> [b, T, c] of its type."""
    samples = past.shape[1] - conv.reach
    out = conv.bias.float()
    for j, tap in enumerate(conv.taps):
        out = out + past[:, j * conv.dilation :][:, :samples].float() * tap
    return (conv.snake(out) if conv.snake else out).to(past.dtype)


def pointwise(x: Tensor, conv: Pointwise, out: Tensor, residual: Tensor | None, keep: bool) -> Tensor | None:
    """x [b, T, c] -> y = W x + bias + residual [b, T, n] float32, returned if the caller wants to `keep` it.

    `out` [b, T, n] takes what the next module reads.
    """
    y = x.float() @ conv.weight.float().T + conv.bias
    if residual is not None:
        y = y + residual
    scale, shift = conv.affine or (1.0, 0.0)
    out.copy_(conv.snake(y * scale + shift))
    return y if keep else None


def depthwise_pointwise(
    past: Tensor, first: Depthwise, second: Pointwise, out: Tensor, residual: Tensor | None, keep: bool
) -> Tensor | None:
    """`pointwise` of `depthwise`."""
    return pointwise(depthwise(past, first), second, out, residual, keep)


def mix_down(past: Tensor, taps: Tensor, bias: Tensor) -> Tensor:
    """past [b, k - 1 + T, c], taps [k, c] -> tanh of the causal convolution into one channel, float32 [b, T]."""
    samples = past.shape[1] - len(taps) + 1
    windows = past.float().unfold(1, len(taps), 1)  # [b, T, c, k]
    return torch.tanh(torch.einsum("btck,kc->bt", windows[:, :samples], taps) + bias)


def recall(state: Tensor, slot: Tensor, frames: Tensor, windows: Tensor, runs: Tensor, first: int) -> None:
    """Fill the windows [b, w] of the streams in `slot` [b] with what modules remember and the new frames [b, T, c].

    state [slots, m]. runs [r, 4] int32 are contiguous elements: where they stand in the state, where in the windows
    before the new samples, where the same number of elements ends a window, and how many they are, at most 1024.
    The frames follow what the first module remembers, at `first`.
    """
    for place, before, _, count in runs.tolist():
        windows[:, before : before + count] = state[slot, place : place + count]
    windows[:, first : first + frames[0].numel()] = frames.flatten(1)


def remember(state: Tensor, slot: Tensor, windows: Tensor, runs: Tensor) -> None:
    """The ends of the windows, back into the state: arguments as `recall`. Equal slots leave either's memory."""
    for place, _, end, count in runs.tolist():
        state[slot, place : place + count] = windows[:, end : end + count]
