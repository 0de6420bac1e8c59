"""Linear maps with an optional bias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.layers.weights import Weights


@dataclass(frozen=True, slots=True)
class Linear:
    weight: Tensor  # [out, in]
    bias: Tensor | None = None  # [out]

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    @classmethod
    def load(cls, weights: Weights, name: str, size: int, inputs: int, *, bias: bool = True) -> Linear:
        scope = weights.scope(name)
        return cls(scope.take("weight", size, inputs), scope.take("bias", size) if bias else None)

    @classmethod
    def fused(cls, weights: Weights, sizes: Mapping[str, int], inputs: int) -> Linear:
        """Several maps of one input, without bias, as one product. Their outputs are side by side."""
        return cls(torch.cat([weights.take(f"{name}.weight", size, inputs) for name, size in sizes.items()]))
