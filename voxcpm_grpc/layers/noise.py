"""Gaussian noise as a pure function of its coordinates, independent of batch, slot and replay.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011) in int64 arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

# A Noise takes seed, turn, segment and step, int64 [b] each, and gives float32 [b, size].
Noise = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# A PatchNoise takes slots [b], and seed, turn, segment, step and temperature of all slots [n].
# It gives float32 [b, P, D].
PatchNoise = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]

WORD = 0xFFFFFFFF
ROUNDS = 10


class Philox:
    """The Philox generator. Its constants are tensors on a device, so that it can be captured in a graph."""

    def __init__(self, device: torch.device) -> None:
        self.multiplier = torch.tensor([0xD2511F53, 0xCD9E8D57], device=device)
        self.weyl = torch.tensor([0x9E3779B9, 0xBB67AE85], device=device)
        self.weyl = torch.arange(ROUNDS, device=device)[:, None] * self.weyl

    def words(self, counter: Tensor, key: Tensor) -> Tensor:
        """Four random words for each counter [..., 4] and key [..., 2]. Words are unsigned 32-bit, in int64 tensors."""
        # Words 0 and 2 are multiplied, words 1 and 3 are mixed in. Each operation processes both pairs.
        even, odd = counter[..., 0::2], counter[..., 1::2]
        for bump in self.weyl:
            product = (even * self.multiplier).flip(-1)  # overflow at 64 bits leaves both 32-bit halves correct
            even = ((product >> 32) & WORD) ^ odd ^ ((key + bump) & WORD)
            odd = product & WORD
        return torch.stack([even, odd], dim=-1).flatten(-2)


class GaussianNoise:
    """Standard normal values, `size` of them for each point (seed, turn, segment, step)."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = size
        self.philox = Philox(device)
        self.block = torch.arange(-(-size // 4), device=device)

    def __call__(self, seed: Tensor, turn: Tensor, segment: Tensor, step: Tensor) -> Tensor:
        """Float32 [b, size] for int64 coordinates [b]. The key is the seed, the counter the block and the rest."""
        shape = (len(seed), len(self.block))
        words = [self.block.expand(shape), *((x & WORD)[:, None].expand(shape) for x in (step, segment, turn))]
        key = torch.stack([seed & WORD, (seed >> 32) & WORD], dim=-1)[:, None]
        # The numbers are in (0, 1].
        uniform = (self.philox.words(torch.stack(words, dim=-1), key).float() + 1) * 2.0**-32
        radius, angle = torch.sqrt(-2 * torch.log(uniform[..., 0::2])), 2 * math.pi * uniform[..., 1::2]
        pairs = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)
        return pairs.flatten(1)[:, : self.size]


class RecordedNoise:
    """Recorded noise, float32 [steps, ...], selected by the step alone. Steps after the last one repeat it."""

    def __init__(self, noise: Tensor) -> None:
        self.noise = noise

    def __call__(self, seed: Tensor, turn: Tensor, segment: Tensor, step: Tensor) -> Tensor:
        """Float32 [b, size] for steps int64 [b]."""
        return self.noise[step.clamp(max=len(self.noise) - 1)].flatten(1)


class SlotNoise:
    """The initial noise of patches of `frames` latent frames with `channels` channels, a `PatchNoise`.

    The values are drawn channel by channel.
    """

    def __init__(self, values: Noise, frames: int, channels: int) -> None:
        self.values, self.shape = values, (channels, frames)

    def __call__(
        self, slot: Tensor, seed: Tensor, turn: Tensor, segment: Tensor, step: Tensor, temperature: Tensor
    ) -> Tensor:
        flat = self.values(seed[slot], turn[slot], segment[slot], step[slot])
        return flat.unflatten(1, self.shape).transpose(1, 2) * temperature[slot][:, None, None]
