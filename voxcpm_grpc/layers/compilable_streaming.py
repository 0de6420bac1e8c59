"""The modules of `cpu_streaming` in a form from which PyTorch's compiler makes a few loops over memory.

Dimensions: b sequences, c channels, T samples, k the width of a kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from voxcpm_grpc.layers.cpu_streaming import Net, RowConv, RowLine, RowResidualUnit, RowSnake, rows_of
from voxcpm_grpc.layers.streaming import DelayLine, Module

# sin(pi r)^2 is r^2 times a polynomial of r^2 with these coefficients, within 2.2e-8 for r from -1/2 to 1/2: the
# interpolation at the Chebyshev points of r^2.
SQUARED_SINE = (9.86960431, -32.4696712, 42.7271964, -30.1014662, 13.0500997, -3.35659274)


def compilable(net: Net) -> Net:
    """The same network for the compiler. `net` is one of `with_cpu_modules` that is not packed."""
    return replace(net, modules=tuple(_converted(module) for module in net.modules))


def _converted(module: Module) -> Module:
    match module:
        case RowSnake():
            alpha, inverse = (values[: module.channels] for values in (module.alpha, module.inverse))
            return PolynomialSnake(alpha / math.pi, inverse.clone())
        case RowConv(stride=1) if module.weight.shape[1] == 1 and module.groups == len(module.weight):
            return TapSum(tuple(module.weight[:, 0, 0].T.clone().unbind()), module.bias, module.dilation)
        case RowResidualUnit():
            return RowResidualUnit(tuple(_converted(part) for part in module.branch))
        case _:
            return module


@dataclass(frozen=True, slots=True)
class PolynomialSnake:
    """`Snake` without a call of the sine, which takes most of its time."""

    turns: Tensor  # [c], alpha / pi
    inverse: Tensor  # [c]

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        rows = rows_of(len(self.turns), x.shape[1])
        wide = x.view(x.shape[0], -1, rows * x.shape[2])
        turns = wide * self.turns.repeat(rows)
        square = (turns - torch.round(turns)).square()
        factor = torch.full_like(square, SQUARED_SINE[-1])
        for coefficient in reversed(SQUARED_SINE[:-1]):
            factor = factor * square + coefficient
        return (wide + self.inverse.repeat(rows) * (square * factor)).view(x.shape)


@dataclass(frozen=True, slots=True)
class TapSum:
    """A convolution of each channel alone, as a sum over the entries of its kernel."""

    taps: tuple[Tensor, ...]  # k of [c]
    bias: Tensor  # [c]
    dilation: int

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        samples, rows = x.shape[1], rows_of(len(self.bias), x.shape[1])
        x = RowLine(line).extend(x)
        y = self.bias.repeat(rows)
        for index, tap in enumerate(self.taps):
            part = x[:, index * self.dilation :][:, :samples]
            y = y + part.reshape(x.shape[0], -1, rows * x.shape[2]) * tap.repeat(rows)
        return y.view(x.shape[0], samples, -1)
