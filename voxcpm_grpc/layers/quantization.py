"""Weights of 8-bit floats with a scale for each output of a linear map."""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = torch.finfo(FP8).max


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """The weight [out, in] in float8_e4m3fn, and its scale float32 [out]: the largest of an output becomes 448."""
    wide = weight.float()
    scale = wide.abs().amax(1).clamp(min=1e-12) / LARGEST
    return (wide / scale[:, None]).to(FP8), scale
