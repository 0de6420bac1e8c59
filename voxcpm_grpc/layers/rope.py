"""Rotary position embedding, with the divisors of LongRoPE for each frequency."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from voxcpm_grpc.attention import Rotation


@dataclass(frozen=True, slots=True)
class Rope:
    """The rotations of positions 0 to n - 1, float32 [n, 1, d / 2], with values of the table dtype."""

    cos: Tensor
    sin: Tensor

    def at(self, position: Tensor) -> Rotation:
        """The rotation at positions [t] int64. Positions past the table, of padding rows only, read its last entry."""
        position = position.clamp(max=self.cos.shape[0] - 1)
        return Rotation(self.cos[position], self.sin[position])

    def whole(self) -> Rotation:
        """The rotation of sequences side by side, each as long as the table, [n, 1, 1, d / 2]."""
        return Rotation(self.cos[:, None], self.sin[:, None])

    def to(self, device: torch.device) -> Rope:
        return Rope(self.cos.to(device), self.sin.to(device))


def build_rope(
    positions: int, size: int, theta: float, divisors: tuple[float, ...] | None, amplitude: float, dtype: torch.dtype
) -> Rope:
    """Tables for head size `size`, on the CPU. `divisors` [size / 2] divide each frequency; None: no division.

    Released models were trained with tables in the dtype that config.json declares. The order of the float32 operations
    is that of the released code, because it matters at high positions.
    """
    frequency = 1.0 / theta ** (torch.arange(0, size, 2).float() / size)
    position = torch.arange(positions).float()
    stretch = torch.ones(size // 2) if divisors is None else torch.tensor(divisors, dtype=torch.float32)
    angle = torch.outer(position, 1.0 / stretch) * frequency
    cos, sin = ((f(angle) * amplitude).to(dtype).float()[:, None] for f in (torch.cos, torch.sin))
    return Rope(cos, sin)


def identity_rope(positions: int, size: int) -> Rope:
    """Tables that rotate nothing, for heads of `size`, on the CPU: for backends that always rotate."""
    return Rope(torch.ones(positions, 1, size // 2), torch.zeros(positions, 1, size // 2))


def longrope_amplitude(longest: int, original: int) -> float:
    """The factor on cosine and sine of a LongRoPE trained on `original` positions and used up to `longest`.

    It is below 1 if `longest` is the smaller of the two.
    """
    return math.sqrt(1 + math.log(longest / original) / math.log(original))
