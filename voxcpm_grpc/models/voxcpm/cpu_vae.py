"""The modules of the audio codec for a CPU in float32, where PyTorch's own convolutions are slow for their shapes.

Dimensions: b sequences, c channels, T samples or latent frames at the rate of a module, k the width of a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from voxcpm_grpc.layers.packed import pack, packing_serves, product
from voxcpm_grpc.models.voxcpm.vae import (
    CausalConv,
    CausalUpsample,
    DelayLine,
    Module,
    ResidualUnit,
    Snake,
    StreamingNet,
)

MANY_INPUTS = 192  # channels of an upsampling from which on one product is faster than a transposed convolution

Net = TypeVar("Net", bound=StreamingNet)


def with_cpu_modules(net: Net) -> Net:
    """The same network, with the modules of this file where they serve. Its memory has the same layout."""
    return replace(net, modules=tuple(_converted(module) for module in net.modules))


def _converted(module: Module) -> Module:
    match module:
        case CausalConv(stride=1) if module.weight.shape[1] == 1 == len(module.weight) // module.groups and _wide(
            module
        ):
            return DepthwiseConv(module.weight[:, 0, :, None].unbind(1), module.bias[:, None], module.dilation)
        case CausalConv(stride=1, dilation=1, groups=1) if len(module.weight) == 1 and _wide(module):
            return SingleOutputConv(module.weight[0].T.contiguous(), module.bias)
        case CausalUpsample() if len(module.weight) >= MANY_INPUTS and packing_serves():
            return _product_upsample(module)
        case Snake():
            return InPlaceSnake(module.alpha, module.inverse)
        case ResidualUnit():
            return InPlaceResidualUnit(tuple(_converted(part) for part in module.branch))
        case _:
            return module


def _wide(module: CausalConv) -> bool:
    """True if the convolution needs past inputs."""
    return module.weight.shape[-1] > 1


@dataclass(frozen=True, slots=True)
class DepthwiseConv:
    """A convolution of each channel alone, as a sum over the entries of its kernel."""

    taps: tuple[Tensor, ...]  # k of [c, 1]
    bias: Tensor  # [c, 1]
    dilation: int

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        size = x.shape[-1]
        x = line.extend(x)
        y = torch.addcmul(self.bias, x[..., :size], self.taps[0])
        for index, tap in enumerate(self.taps[1:], 1):
            start = index * self.dilation
            y.addcmul_(x[..., start : start + size], tap)
        return y


@dataclass(frozen=True, slots=True)
class SingleOutputConv:
    """A convolution to one channel: a product with all entries of the kernel, and the sum of its shifted rows."""

    weight: Tensor  # [k, c]
    bias: Tensor  # [1]

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        size = x.shape[-1]
        parts = torch.matmul(self.weight, line.extend(x))  # [b, k, T + k - 1]
        y = parts[:, :1, :size] + self.bias
        for index in range(1, len(self.weight)):
            y += parts[:, index : index + 1, index : index + size]
        return y


@dataclass(frozen=True, slots=True)
class ProductUpsample:
    """`CausalUpsample` as one product: each pair of neighbouring inputs gives `stride` outputs."""

    packed: Tensor  # of [outputs * stride, 2 * inputs], the previous input first
    bias: Tensor  # [outputs * stride]
    stride: int

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        b, _, size = x.shape
        x = line.extend(x)
        pairs = torch.cat([x[..., :-1], x[..., 1:]], dim=1).transpose(1, 2).flatten(0, 1)  # [b * T, 2 * inputs]
        y = product(pairs, self.packed, self.bias).view(b, size, -1, self.stride)
        return y.permute(0, 2, 1, 3).flatten(2)


def _product_upsample(module: CausalUpsample) -> ProductUpsample:
    current, previous = module.weight.split(module.stride, dim=-1)  # [in, out, s] each
    weight = torch.cat([previous, current]).permute(1, 2, 0).flatten(0, 1)
    return ProductUpsample(pack(weight), module.bias.repeat_interleave(module.stride), module.stride)


@dataclass(frozen=True, slots=True)
class InPlaceSnake:
    """`Snake` with one allocation: the system takes longer to provide large memory than a sum takes."""

    alpha: Tensor  # [1, c, 1]
    inverse: Tensor

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        y = self.alpha * x
        return y.sin_().square_().mul_(self.inverse).add_(x)


@dataclass(frozen=True, slots=True)
class InPlaceResidualUnit:
    branch: tuple[Module, ...]  # the result of the last one is its own memory

    def __call__(self, x: Tensor, line: DelayLine) -> Tensor:
        y = x
        for module in self.branch:
            y = module(y, line)
        return y.add_(x)
