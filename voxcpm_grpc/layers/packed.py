"""Linear maps whose weights oneDNN has packed for its products on a CPU, in float32.

PyTorch computes float32 products with MKL, which has no AVX-512 code for the CPUs of AMD. oneDNN has, and a call of it
costs more, so that products of few rows stay with PyTorch.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.layers.linear import Linear
from voxcpm_grpc.layers.ops import RMSNorm, TorchOps

PACKED_ROWS = 4  # oneDNN is faster from here on (AMD Zen 5, 256 to 640 inputs)
PLAIN_BYTES = 4 << 20  # weights up to here are kept in both forms
TYPICAL_ROWS = 32  # the packing takes it as a hint
TYPICAL_SAMPLES = 256  # so does that of a convolution


def packing_serves() -> bool:
    """True if this PyTorch and this CPU have oneDNN's products, and they compute what PyTorch's do."""
    return platform.machine() in ("x86_64", "AMD64") and _products_agree()


@cache
def _products_agree() -> bool:
    weight, x = torch.linspace(-1, 1, 32 * 16).view(32, 16), torch.linspace(1, -2, 5 * 16).view(5, 16)
    try:
        return torch.backends.mkldnn.is_available() and torch.allclose(
            product(x, pack(weight), None), F.linear(x, weight), rtol=1e-4, atol=1e-4
        )
    except (AttributeError, RuntimeError, TypeError):  # the operations are not part of PyTorch's public interface
        return False


def pack(weight: Tensor) -> Tensor:
    """A weight float32 [o, i] as oneDNN wants it. Only `product` can read the result."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), TYPICAL_ROWS)


def product(x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    """The linear map of x float32 [t, i] with a packed weight and a bias [o] -> [t, o]."""
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def pack_convolution(weight: Tensor, stride: int, dilation: int, groups: int) -> Tensor:
    """A weight float32 [o, i / groups, 1, k] as oneDNN wants it. Only `convolution` can read the result."""
    size = 1, weight.shape[1] * groups, 1, TYPICAL_SAMPLES  # a hint
    steps = [0, 0], [1, stride], [1, dilation]
    return torch.ops.mkldnn._reorder_convolution_weight(weight.contiguous(), *steps, groups, list(size))


def convolution(x: Tensor, packed: Tensor, bias: Tensor, stride: int, dilation: int, groups: int) -> Tensor:
    """The convolution of x float32 [b, i, 1, T], without padding, with a packed weight and a bias [o]."""
    steps = [0, 0], [1, stride], [1, dilation]
    return torch.ops.mkldnn._convolution_pointwise(x, packed, bias, *steps, groups, "none", [], "")


@dataclass(frozen=True, slots=True)
class PackedLinear(Linear):
    """A linear map with a packed weight. `weight` is empty if it was too large to be kept beside it."""

    packed: Tensor | None = None

    def product(self, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if self.packed is None or (rows < PACKED_ROWS and self.weight.numel()):
            return F.linear(x, self.weight, self.bias)
        return product(x, self.packed, self.bias)

    @classmethod
    def of(cls, linear: Linear, *, keep: bool = True) -> Linear:
        """The packed form of a map in float32. With `keep`, a small weight is kept beside it for few rows."""
        weight = linear.weight
        kept = weight if keep and weight.nbytes <= PLAIN_BYTES else weight.new_empty(0)
        return cls(kept, linear.bias, linear.low_rank, packed=pack(weight))


class PackedOps(TorchOps):
    """Separate PyTorch operations, with oneDNN's products."""

    def prepare(self, norm: RMSNorm, linear: Linear) -> tuple[RMSNorm, Linear]:
        return norm, PackedLinear.of(linear)

    def prepare_output(self, linear: Linear) -> Linear:
        return PackedLinear.of(linear)
