"""A compiled evaluation of the diffusion, for a number of sequences."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from voxcpm_grpc.models.voxcpm.compiled.files import Compiled, load_library
from voxcpm_grpc.models.voxcpm.flow.cpu_flow import prefixes
from voxcpm_grpc.models.voxcpm.flow.local import LocDiT
from voxcpm_grpc.models.voxcpm.flow.matching import guided


def example(dit: LocDiT, patch: tuple[int, int], sequences: int) -> tuple[Tensor, ...]:
    """Arguments of an evaluation in the plain network, for patches of (P, D): x, time token, mu, condition, cfg, size.

    mu and condition are arguments of `LocDiT.context`.
    """
    random = partial(torch.randn, generator=torch.Generator().manual_seed(sequences))
    x, before, mu = random(sequences, *patch), random(sequences, *patch), random(sequences, dit.mu_tokens, dit.hidden)
    return x, random(1, dit.hidden), mu, before, torch.full((sequences,), 2.0), torch.tensor(0.1)


def arguments(dit: LocDiT, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The arguments of an `Evaluation` that belong to those of the plain network."""
    x, token, mu, condition, cfg, size = given
    return x, *next(prefixes(dit, mu, condition, token[None])), cfg, size


def plain_step(dit: LocDiT, given: tuple[Tensor, ...]) -> Tensor:
    """The result of an evaluation, computed by the plain network."""
    x, token, mu, condition, cfg, size = given
    conditional, unconditional = dit(x, token, *dit.context(mu, condition)).chunk(2)
    return x - size * guided(conditional, unconditional, cfg[:, None, None])


@torch.inference_mode()
def load_evaluation(path: Path, dit: LocDiT, patch: tuple[int, int], sequences: int) -> Compiled | None:
    """The evaluation of a file, which gives a list; None if it cannot be loaded or differs from the plain network."""
    given = example(dit, patch, sequences)
    return load_library(path, arguments(dit, given), [plain_step(dit, given)])
