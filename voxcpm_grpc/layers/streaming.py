"""Causal convolutions with memory, so that chunks of any length join exactly.

Dimensions: b sequences, c channels, T samples or frames at the rate of a module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


class DelayLine:
    """The recent inputs of each module with memory, in the order in which the modules run."""

    def __init__(self, tails: list[Tensor]) -> None:
        self.before = iter(tails)
        self.after: list[Tensor] = []

    def extend(self, x: Tensor) -> Tensor:
        """x [b, c, T] preceded by the recent input of this module, which is then replaced by the end of both."""
        tail = next(self.before)
        x = torch.cat([tail, x], dim=-1)
        self.after.append(x[..., -tail.shape[-1] :])
        return x


Module = Callable[[Tensor, DelayLine], Tensor]


@dataclass(frozen=True, slots=True)
class CausalConv:
    weight: Tensor  # [out, in / groups, k]
    bias: Tensor
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        if self.weight.shape[-1] > 1:
            x = line.extend(x)
        return F.conv1d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


@dataclass(frozen=True, slots=True)
class CausalUpsample:
    """A transposed convolution of kernel 2s and stride s. An output depends on its own input and the previous one."""

    weight: Tensor  # [in, out, 2 * stride]
    bias: Tensor
    stride: int

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        y = F.conv_transpose1d(line.extend(x), self.weight, self.bias, self.stride)
        return y[..., self.stride : -self.stride]


@dataclass(frozen=True, slots=True)
class Snake:
    alpha: Tensor  # [1, c, 1]
    inverse: Tensor

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        return x + self.inverse * torch.sin(self.alpha * x).square()


@dataclass(frozen=True, slots=True)
class ResidualUnit:
    branch: tuple[Module, ...]

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        y = x
        for module in self.branch:
            y = module(y, line)
        return x + y


@dataclass(frozen=True, slots=True)
class StreamingNet:
    """A sequence of modules, and the size (channels, samples) of the memory of each one that has memory."""

    modules: tuple[Module, ...]
    tails: tuple[tuple[int, int], ...]
    cudnn: bool = True  # without it, PyTorch's own convolutions process the streams of a batch one after another

    @property
    def memory(self) -> int:
        """Floats that a stream keeps between two chunks; zeros before its first chunk."""
        return sum(channels * samples for channels, samples in self.tails)

    def __call__(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """The next chunk x [b, c, T] of streams with memory [b, m] -> their outputs [b, c', T'] and new memory.

        The computation is float32: TF32, the default of convolutions on CUDA, makes audible errors.
        """
        parts = memory.split([channels * samples for channels, samples in self.tails], dim=1)
        line = DelayLine([part.unflatten(1, size) for part, size in zip(parts, self.tails, strict=True)])
        with torch.backends.cudnn.flags(enabled=self.cudnn, allow_tf32=False):
            for module in self.modules:
                x = module(x, line)
        return x, torch.cat([tail.flatten(1) for tail in line.after], dim=1)
