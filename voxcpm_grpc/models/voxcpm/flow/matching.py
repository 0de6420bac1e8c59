"""Flow matching: noise becomes latents along a learned velocity, in a few Euler steps with guidance."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Schedule:
    """The evaluations of one pass over n timesteps: evaluation i is at time[i], for a step of size[i].

    The velocity of the first step, or of the first two of 49 and more, is taken as zero, so there are fewer evaluations
    than timesteps.
    """

    time: Tensor  # [evaluations] table dtype, descending
    size: tuple[float, ...]


def build_schedule(timesteps: int, dtype: torch.dtype) -> Schedule:
    """Times from 1 to 0, denser near 1, computed in `dtype` throughout.

    Each time is the previous one minus a rounded difference, and not an entry of the grid: in bfloat16 the two differ,
    and released models were trained with the dtype of their tables.
    """
    grid = torch.linspace(1, 0, timesteps + 1, dtype=dtype)
    grid = grid + (torch.cos(torch.pi / 2 * grid) - 1 + grid)
    still = max(1, int((timesteps + 1) * 0.04))
    times, sizes = [], []
    time, size = grid[0], grid[0] - grid[1]
    for step in range(1, timesteps + 1):
        if step > still:
            times.append(time)
            sizes.append(float(size))
        time = time - size
        if step < timesteps:
            size = time - grid[step + 1]
    return Schedule(torch.stack(times) if times else grid.new_empty(0), tuple(sizes))


def embed_time(time: Tensor, size: int) -> Tensor:
    """Sines, then cosines, of times [t] -> [t, size], with every operation in the dtype of `time`.

    Arguments reach 1000, where bfloat16 is off by up to 2 radians. A model that was trained with this error needs it.
    """
    half = size // 2
    decay = math.log(10000) / (half - 1)
    frequency = torch.exp(torch.arange(half, dtype=time.dtype, device=time.device) * -decay)
    angle = 1000 * time[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def euler(
    noise: Tensor, schedule: Schedule, velocity: Callable[[Tensor, int], tuple[Tensor, Tensor]], cfg: Tensor
) -> Tensor:
    """Latents [b, P, D] from float32 noise [b, P, D], with guidance of strength cfg [b].

    `velocity(x, i)` returns the conditional and the unconditional velocity at the schedule's time i. The unconditional
    one is scaled to the best fit of the conditional one (CFG-Zero*), for each sequence.
    """
    x, strength = noise, cfg[:, None, None]
    for i, size in enumerate(schedule.size):
        x = x - size * guided(*(v.float() for v in velocity(x, i)), strength)
    return x


def guided(conditional: Tensor, unconditional: Tensor, strength: Tensor) -> Tensor:
    """The velocity [b, P, D] of both, float32 [b, P, D], with guidance of strength [b, 1, 1]."""
    c, u = conditional, unconditional
    u = u * ((c * u).sum((1, 2), keepdim=True) / (u.square().sum((1, 2), keepdim=True) + 1e-8))
    return torch.lerp(u, c, strength)
