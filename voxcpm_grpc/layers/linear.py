"""Linear maps with an optional bias, with LoRA adapters, and with weights of 8-bit floats and their scales."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from voxcpm_grpc.layers.low_rank import LowRank
from voxcpm_grpc.layers.weights import Weights

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The weight [out, in] in float8_e4m3fn, and its scale float32 [out]: the largest of an output becomes 448."""
    wide = weight.float()
    scale = wide.abs().amax(1).clamp(min=1e-12) / LARGEST
    return (wide / scale[:, None]).to(FP8), scale


if TYPE_CHECKING:
    from voxcpm_grpc.kernels.lora.grouped_lora import GroupedUpdate
    from voxcpm_grpc.kernels.lora.row_lora import RowUpdate


@dataclass(frozen=True, slots=True)
class Linear:
    weight: Tensor  # [out, in]
    bias: Tensor | None = None  # [out]
    low_rank: LowRank | None = None
    weight_scale: Tensor | None = None  # float32 [out], of a weight in float8_e4m3fn; None: it has x's dtype

    def __call__(self, x: Tensor, adapter: Tensor | None = None) -> Tensor:
        """x [..., in] -> [..., out].

        adapter int64 [s]: the bank of the LoRA adapter of row r is adapter[r % s]; None: the model alone.
        """
        out = self.product(x)
        if adapter is not None and self.low_rank is not None:
            self.low_rank.add(out.view(-1, out.shape[-1]), x.reshape(-1, x.shape[-1]), adapter)
        return out

    def product(self, x: Tensor) -> Tensor:
        """The map without adapters."""
        return F.linear(x, self.dequantized(x.dtype), self.bias)

    def dequantized(self, dtype: torch.dtype) -> Tensor:
        """The weight [out, in] in the dtype of the computation, computed anew if it has 8 bits."""
        if self.weight_scale is None:
            return self.weight
        if self.weight.is_cuda:
            from voxcpm_grpc.kernels.products.fp8 import dequantize
        else:
            from voxcpm_grpc.kernels.products.reference import dequantize
        return dequantize(self.weight, self.weight_scale, dtype)

    def quantized(self) -> Linear:
        """The same map with its weight in 8 bits."""
        weight, weight_scale = quantize(self.weight)
        return replace(self, weight=weight, weight_scale=weight_scale)

    def row_update(self, adapter: Tensor | None) -> RowUpdate | None:
        """The update of one row for `kernels.gemv`; None without adapters."""
        return None if adapter is None or self.low_rank is None else self.low_rank.of_row(adapter)

    def update_beside(self, x: Tensor, adapter: Tensor | None, *, eps: float | None = None) -> GroupedUpdate | None:
        """The update of x [t, in], as `LowRank.beside` computes it; None without adapters."""
        return None if adapter is None or self.low_rank is None else self.low_rank.beside(x, adapter, eps=eps)

    @classmethod
    def load(cls, weights: Weights, name: str, size: int, inputs: int, *, bias: bool = True) -> Linear:
        scope = weights.scope(name)
        weight, own_bias = scope.take("weight", size, inputs), scope.take("bias", size) if bias else None
        return cls(weight, own_bias, weights.low_rank({name: size}, inputs))

    @classmethod
    def fused(cls, weights: Weights, sizes: Mapping[str, int], inputs: int) -> Linear:
        """Several maps of one input, without bias, as one product. Their outputs are side by side."""
        weight = torch.cat([weights.take(f"{name}.weight", size, inputs) for name, size in sizes.items()])
        return cls(weight, low_rank=weights.low_rank(sizes, inputs))
