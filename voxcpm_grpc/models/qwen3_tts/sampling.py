"""Draws codes in the official order: penalty, end, other ids, temperature, top_k with ties, top_p.

Dimensions: b sequences, n slots, v ids. Numbers of sequences are tensors [b], so that all of them are drawn in one
call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from voxcpm_grpc.layers.noise import WORD, Philox

LARGEST = 1 - 2.0**-24  # float32 has no number between this one and 1


Choose = Callable[[Tensor, int], Tensor]
"""Chooses codes int64 [b] by logits [b, v] of any dtype, for the code of this number in the step, from 1 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeIds:
    """The ids of a model."""

    groups: int  # codes of a step
    codes: int  # the ids of codes are below
    vocabulary: int  # ids of the first code of a step: codes, and others that are none
    end: int  # one of the others, which ends the speech


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a stage for sequences [b], or for all slots [n]; temperature 0 is greedy."""

    temperature: Tensor  # float32
    top_k: Tensor  # int64, from 1 on
    cut: Tensor  # float32, 1 - top_p; 0: all ids

    def of(self, slot: Tensor) -> Options:
        return Options(self.temperature[slot], self.top_k[slot], self.cut[slot])


@dataclass(frozen=True, slots=True)
class Points:
    """The coordinates of the noise of all slots, int64 [n]."""

    seed: Tensor
    turn: Tensor
    segment: Tensor
    step: Tensor

    def of(self, slot: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.seed[slot], self.turn[slot], self.segment[slot], self.step[slot]


@dataclass(frozen=True, slots=True)
class FirstCodes:
    """The state of all slots that is specific to first codes."""

    penalty: Tensor  # float32 [n]
    seen: Tensor  # bool [n, v]: first codes that were drawn
    least: Tensor  # int64 [n]: the end is not drawn before this step


class Sampler(Protocol):
    """Draws the codes of a step for the sequences in slots [b], by numbers of all slots."""

    def first(self, logits: Tensor, slot: Tensor, points: Points, options: Options, state: FirstCodes) -> Tensor:
        """The first codes int64 [b] by logits [b, v] of any dtype. They are added to those that were seen."""
        ...

    def others(self, slot: Tensor, points: Points, options: Options) -> Choose:
        """Returns the function that draws the other codes of the step."""
        ...


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


class PlainSampler:
    """A `Sampler` in plain operations of PyTorch."""

    def __init__(self, ids: CodeIds, device: torch.device) -> None:
        self._ids, self._noise = ids, GumbelNoise(ids.groups, device)
        known = torch.arange(ids.vocabulary, device=device)
        self._end = known == ids.end
        self._suppressed = (known >= ids.codes) & ~self._end

    def allowed(self, logits: Tensor, early: Tensor) -> Tensor:
        """Logits [b, v] of first codes, -inf at ids that are none, and at the end while it is too `early`, bool [b]."""
        return logits.masked_fill(self._suppressed | (early[:, None] & self._end), -torch.inf)

    def first(self, logits: Tensor, slot: Tensor, points: Points, options: Options, state: FirstCodes) -> Tensor:
        seed, turn, segment, step = points.of(slot)
        logits = penalized(logits.float(), state.seen[slot], state.penalty[slot])
        logits = self.allowed(logits, step < state.least[slot])
        noise = self._noise(seed, turn, segment, step, range(1), logits.shape[-1])[:, 0]
        ids = draw(logits, options.of(slot), noise)
        state.seen.flatten().index_fill_(0, slot * state.seen.shape[1] + ids, True)
        return ids

    def others(self, slot: Tensor, points: Points, options: Options) -> Choose:
        noise = self._noise(*points.of(slot), range(1, self._ids.groups), self._ids.codes)
        options = options.of(slot)
        return lambda logits, group: draw(logits.float(), options, noise[:, group - 1])
