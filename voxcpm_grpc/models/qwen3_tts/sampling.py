"""Draws codes in the official order: penalty, end, other ids, temperature, top_k with ties, top_p.

Dimensions: b sequences, v ids. Numbers of sequences are tensors [b], so that all of them are drawn in one call.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from voxcpm_grpc.layers.noise import WORD, Philox

LARGEST = 1 - 2.0**-24  # float32 has no number between this one and 1


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a stage; temperature 0 is greedy."""

    temperature: Tensor  # float32 [b]
    top_k: Tensor  # int64 [b], from 1 on
    cut: Tensor  # float32 [b], 1 - top_p; 0: all ids


class GumbelNoise:
    """Gumbel noise as a pure function of its coordinates, independent of batch, slot and replay."""

    def __init__(self, groups: int, device: torch.device) -> None:
        """groups: the draws of a step."""
        self._groups, self._device = groups, device
        self._philox = Philox(device)

    def __call__(self, seed: Tensor, turn: Tensor, segment: Tensor, step: Tensor, stages: range, size: int) -> Tensor:
        """Float32 [b, stages, size], for coordinates int64 [b] and these draws of a step."""
        stage = torch.arange(stages.start, stages.stop, device=self._device)
        block = torch.arange(-(-size // 4), device=self._device)
        draw = self._groups * step[:, None] + stage  # [b, stages]
        shape = *draw.shape, len(block)
        counter = draw[..., None], block, segment[:, None, None], turn[:, None, None]
        key = torch.stack([seed & WORD, (seed >> 32) & WORD], dim=-1)[:, None, None]
        words = self._philox.words(torch.stack([(x & WORD).expand(shape) for x in counter], dim=-1), key)
        uniform = ((words.flatten(-2)[..., :size].float() + 0.5) * 2.0**-32).clamp(max=LARGEST)
        return -torch.log(-torch.log1p(-uniform))


def penalized(logits: Tensor, seen: Tensor, penalty: Tensor) -> Tensor:
    """Logits [b, v] of which those of `seen` ids, bool [b, v], are made smaller by the penalty [b]."""
    factor = penalty[:, None]
    return torch.where(seen, torch.where(logits < 0, logits * factor, logits / factor), logits)


def filtered(logits: Tensor, options: Options) -> Tensor:
    """Logits [b, v] over the temperature, and -inf at ids that are not among the top_k or not in top_p."""
    temperature = torch.where(options.temperature > 0, options.temperature, 1)
    scores = logits / temperature[:, None]
    ordered, ids = scores.sort(dim=-1, stable=True)  # equal logits then do not depend on the batch
    size = scores.shape[-1]
    least = ordered.gather(1, (size - options.top_k.clamp(1, size))[:, None])
    ordered = ordered.masked_fill(ordered < least, -math.inf)
    cut = options.cut[:, None]
    dropped = (ordered.softmax(-1).cumsum(-1) <= cut) & (cut > 0)
    dropped[:, -1] = False
    ordered = ordered.masked_fill(dropped, -math.inf)
    return torch.empty_like(scores).scatter_(1, ids, ordered)


def draw(logits: Tensor, options: Options, noise: Tensor) -> Tensor:
    """Ids int64 [b] by logits [b, v] and Gumbel noise [b, v]."""
    sampled = (filtered(logits, options) + noise).argmax(-1)
    return torch.where(options.temperature > 0, sampled, logits.argmax(-1))
