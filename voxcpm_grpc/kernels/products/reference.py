"""The definition of each kernel for products in plain PyTorch, with the same name and signature. Imports no Triton.

Dimensions: t rows, s sequences, h query heads, g KV heads, d head size, p pages of a sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from voxcpm_grpc.kernels.rows.reference import rms_norm, swiglu


def norm_linear(x: Tensor, eps: float, weight: Tensor, *, gain: Tensor | None = None) -> Tensor:
    """Each row of x [t, c], divided by its root mean square, times weight [o, c] -> [t, o]. Sums are float32.

    gain [c] multiplies the rows before the weight does; None: it is a part of the weight.
    """
    return linear(rms_norm(x, gain, eps), weight)


def norm_gated(x: Tensor, eps: float, weight: Tensor, *, gain: Tensor | None = None) -> Tensor:
    """silu(gate) * up of `norm_linear` with weight [2f, c], gate first -> [t, f]."""
    return swiglu(norm_linear(x, eps, weight, gain=gain))


def linear_add(x: Tensor, weight: Tensor, residual: Tensor, scale: float) -> Tensor:
    """residual [t, o] + scale * (x [t, c] times weight [o, c])."""
    return residual + scale * linear(x, weight)


def dequantize(weight: Tensor, weight_scale: Tensor, dtype: torch.dtype) -> Tensor:
    """A weight [o, c] in 8 bits times its scale [o], computed in float32 and rounded to `dtype`."""
    return (weight.float() * weight_scale[:, None]).to(dtype)
