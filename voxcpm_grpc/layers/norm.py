"""Root mean square normalization."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from voxcpm_grpc.layers.weights import Weights


@dataclass(frozen=True, slots=True)
class RMSNorm:
    weight: Tensor | None  # [c]; None: it is included in the weight of the linear map that follows
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """Normalize x [..., c] in float32, round to x's dtype, then multiply by the weight."""
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        normalized = (wide * scale).to(x.dtype)
        return normalized if self.weight is None else normalized * self.weight

    @classmethod
    def load(cls, weights: Weights, name: str, size: int, eps: float) -> RMSNorm:
        return cls(weights.take(f"{name}.weight", size), eps)
