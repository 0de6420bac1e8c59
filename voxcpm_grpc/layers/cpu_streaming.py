"""The modules of streaming networks for a CPU in float32, where PyTorch's own convolutions are slow for their shapes.

They compute on rows: samples follow each other, each with its channels side by side. A convolution of width 1 and an
upsampling are then one product, and oneDNN has fast code for the others.

Dimensions: b sequences, c channels, T samples or latent frames at the rate of a module, k the width of a kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.packed import PackedLinear, convolution, pack_convolution, packing_serves
from voxcpm_grpc.layers.streaming import (
    CausalConv,
    CausalUpsample,
    DelayLine,
    Module,
    ResidualUnit,
    Snake,
    StreamingNet,
)

TILED = 1536  # channels of consecutive samples to which a vector of channels is repeated, for long inner loops

Net = TypeVar("Net", bound=StreamingNet)


def with_cpu_modules(net: Net, *, packed: bool = True) -> Net:
    """The same network, with the modules of this file. Its memory holds the recent inputs of a module as rows.

    With `packed`, products and convolutions are oneDNN's, if it has them.
    """
    packed = packed and packing_serves()
    modules = to_rows, *(_converted(module, packed) for module in net.modules), from_rows
    return replace(net, modules=modules, tails=tuple((samples, channels) for channels, samples in net.tails))


def _converted(module: Module, packed: bool) -> Module:
    match module:
        case CausalConv(stride=1, groups=1) if module.weight.shape[-1] == 1:
            return RowLinear(_linear(module.weight[..., 0], module.bias, packed))
        case CausalConv():
            return RowConv.of(module, packed)
        case CausalUpsample():
            return _row_upsample(module, packed)
        case Snake():
            return RowSnake(_tiled(module.alpha), _tiled(module.inverse), module.alpha.numel())
        case ResidualUnit():
            return RowResidualUnit(tuple(_converted(part, packed) for part in module.branch))
        case _:
            return ChannelFirst(module)


def _linear(weight: Tensor, bias: Tensor, packed: bool) -> Linear:
    linear = Linear(weight.contiguous(), bias)
    return PackedLinear.of(linear) if packed else linear


def _tiled(channels: Tensor) -> Tensor:
    """A vector of channels again and again, TILED values or a few more."""
    channels = channels.flatten()
    return channels.repeat(1 << (-(-TILED // len(channels)) - 1).bit_length())


def rows_of(channels: int, samples: int) -> int:
    """The consecutive samples of a chunk that count as one row of an operation for each channel."""
    return math.gcd(samples, 1 << (-(-TILED // channels) - 1).bit_length())


def to_rows(x: Tensor, line: DelayLine) -> Tensor:
    return x.transpose(1, 2).contiguous()


def from_rows(x: Tensor, line: DelayLine) -> Tensor:
    return x.transpose(1, 2)


@dataclass(frozen=True, slots=True)
class RowLine:
    """A delay line for modules that compute on rows."""

    line: DelayLine

    def extend(self, x: Tensor) -> Tensor:
        """x [b, T, c] preceded by the recent input of this module, which is then replaced by the end of both."""
        tail = next(self.line.before)
        x = torch.cat([tail, x], dim=1)
        self.line.after.append(x[:, -tail.shape[1] :])
        return x


class _ChannelFirstLine(DelayLine):
    """The same delay line for a module that computes on [b, c, T]."""

    def __init__(self, line: DelayLine) -> None:
        self.rows = RowLine(line)

    def extend(self, x: Tensor) -> Tensor:
        return self.rows.extend(x.transpose(1, 2)).transpose(1, 2)


@dataclass(frozen=True, slots=True)
class ChannelFirst:
    """A module without a form for rows."""

    module: Module

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        return self.module(x.transpose(1, 2), _ChannelFirstLine(line)).transpose(1, 2).contiguous()


@dataclass(frozen=True, slots=True)
class RowLinear:
    """A convolution of width 1."""

    linear: Linear

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        return self.linear.product(x)


@dataclass(frozen=True, slots=True)
class RowConv:
    weight: Tensor  # [out, in / groups, 1, k], packed for oneDNN if `packed`
    bias: Tensor
    stride: int
    dilation: int
    groups: int
    packed: bool

    @classmethod
    def of(cls, conv: CausalConv, packed: bool) -> RowConv:
        weight, own = conv.weight[:, :, None], (conv.stride, conv.dilation, conv.groups)
        weight = pack_convolution(weight, *own) if packed else weight.contiguous(memory_format=torch.channels_last)
        return cls(weight, conv.bias, *own, packed)

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        x = RowLine(line).extend(x)[:, None].permute(0, 3, 1, 2)  # [b, c, 1, T], with the channels side by side
        convolve = convolution if self.packed else _plain_convolution
        y = convolve(x, self.weight, self.bias, self.stride, self.dilation, self.groups)
        return y.permute(0, 2, 3, 1)[:, 0]


def _plain_convolution(x: Tensor, weight: Tensor, bias: Tensor, stride: int, dilation: int, groups: int) -> Tensor:
    return F.conv2d(x, weight, bias, (1, stride), 0, (1, dilation), groups)


@dataclass(frozen=True, slots=True)
class RowUpsample:
    """`CausalUpsample` as one product: each pair of neighbouring inputs gives `stride` outputs."""

    linear: Linear  # from the channels of two inputs, the previous one first, to those of all outputs
    stride: int

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        b, size, _ = x.shape
        x = RowLine(line).extend(x)
        return self.linear.product(torch.cat([x[:, :-1], x[:, 1:]], dim=2)).view(b, size * self.stride, -1)


def _row_upsample(module: CausalUpsample, packed: bool) -> RowUpsample:
    current, previous = module.weight.split(module.stride, dim=-1)  # [in, out, s] each
    weight = torch.cat([previous, current]).permute(2, 1, 0).flatten(0, 1)
    return RowUpsample(_linear(weight, module.bias.repeat(module.stride), packed), module.stride)


@dataclass(frozen=True, slots=True)
class RowSnake:
    """`Snake` with one allocation: the system takes longer to provide large memory than a sum takes."""

    alpha: Tensor  # repeated
    inverse: Tensor
    channels: int

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        size = rows_of(self.channels, x.shape[1]) * self.channels
        wide = x.view(x.shape[0], -1, size)
        y = self.alpha[:size] * wide
        return torch.addcmul(wide, y.sin_().square_(), self.inverse[:size], out=y).view(x.shape)


@dataclass(frozen=True, slots=True)
class RowResidualUnit:
    branch: tuple[Module, ...]  # the result of the last one is its own memory

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        y = x
        for module in self.branch:
            y = module(y, line)
        return y.add_(x)
