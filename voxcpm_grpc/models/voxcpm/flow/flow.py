"""The diffusion of a patch: its schedules, and the loop from noise to latents.

Dimensions: b sequences, P latent frames of a patch, D latent channels, e hidden size, n evaluations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from voxcpm_grpc.models.voxcpm.flow.local import LocDiT
from voxcpm_grpc.models.voxcpm.flow.matching import Schedule, build_schedule, euler


@dataclass(frozen=True, slots=True)
class FlowSchedule:
    """A schedule of n evaluations, with its times and step sizes as tensors on the model's device."""

    schedule: Schedule
    tokens: Tensor  # [n, 1, e], the time tokens
    sizes: Tensor  # float32 [n], the step sizes


def build_schedules(
    dit: LocDiT, timesteps: Iterable[int], table: torch.dtype, *, mean: bool = False
) -> dict[int, FlowSchedule]:
    """A schedule for each count of timesteps, computed in the dtype `table`.

    A model that predicts the mean velocity of a step (`mean`) receives the size of the step, every other one zero.
    """
    schedules = {}
    for n in timesteps:
        schedule = build_schedule(n, table)
        sizes = torch.tensor(schedule.size)
        delta = sizes if mean else torch.zeros_like(sizes)
        tokens = dit.time_tokens(schedule.time, delta.to(table))
        schedules[n] = FlowSchedule(schedule, tokens, sizes.to(tokens.device))
    return schedules


class FlowLoop(Protocol):
    """All evaluations of a pass, at least one. adapter int64 [b]: the bank of each sequence's LoRA adapter."""

    def __call__(
        self,
        noise: Tensor,
        mu: Tensor,
        condition: Tensor,
        cfg: Tensor,
        schedule: FlowSchedule,
        adapter: Tensor | None = None,
        /,
    ) -> Tensor: ...


class PlainFlow:
    """The loop over the model's own modules: the reference for every faster loop."""

    def __init__(self, dit: LocDiT) -> None:
        self.dit = dit

    def __call__(
        self,
        noise: Tensor,
        mu: Tensor,
        condition: Tensor,
        cfg: Tensor,
        schedule: FlowSchedule,
        adapter: Tensor | None = None,
    ) -> Tensor:
        mu, condition = self.dit.context(mu, condition)
        both = None if adapter is None else adapter.repeat(2)

        def velocity(x: Tensor, i: int) -> tuple[Tensor, Tensor]:
            conditional, unconditional = self.dit(x.to(mu.dtype), schedule.tokens[i], mu, condition, both).chunk(2)
            return conditional, unconditional

        return euler(noise, schedule.schedule, velocity, cfg)


@dataclass(frozen=True, slots=True)
class PatchFlow:
    """Turns noise into patches, under a schedule for each allowed count of timesteps.

    `single` serves a batch of one sequence without an adapter, `batch` every other one.
    """

    schedules: Mapping[int, FlowSchedule]
    single: FlowLoop
    batch: FlowLoop

    def __call__(
        self,
        noise: Tensor,
        mu: Tensor,
        condition: Tensor,
        cfg: Tensor,
        timesteps: int,
        adapter: Tensor | None = None,
    ) -> Tensor:
        """Patches float32 [b, P, D] of noise float32 [b, P, D], mu [b, m, e], patches before [b, P, D] and cfg [b].

        adapter int64 [b]: the bank of each sequence's LoRA adapter; None: the model alone.
        """
        schedule = self.schedules[timesteps]
        if not schedule.schedule.size:
            return noise
        loop = self.single if len(noise) == 1 and adapter is None else self.batch
        return loop(noise, mu, condition, cfg, schedule, adapter)
