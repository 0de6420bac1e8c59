"""Which engine gets a job: one with a slot, the least work left, or hardly more and the voice in its cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import numpy as np

from voxcpm_grpc.request import ModelInfo, Request

CHARS_PER_SECOND = 14.0  # of speech, in alphabets
WIDE_CHARS_PER_SECOND = 4.5  # in scripts that write syllables or words
FIRST_WIDE = "\u1100"  # Hangul, and what follows it: kana, Chinese characters
PAUSE_SECONDS = 0.5  # round what is said
ENTERED_PER_STEP = 64  # patches of a voice that enter the cache in the time of a step
CODED_PER_STEP = 16  # patches that the codec encodes or decodes in the time of a step
KNOWN_STEPS = 32.0  # of work more, a short sentence, that an engine may have and still be chosen for its cached voice
VOICES = 4096  # whose engines are remembered
SAMPLED_PATCHES = 8  # of a reference that tell it from others


class Candidate(Protocol):
    @property
    def full(self) -> bool:
        """Whether one more stream would wait for a slot."""
        ...

    @property
    def work(self) -> float:
        """Steps outstanding."""
        ...


C = TypeVar("C", bound=Candidate)


def work_of(request: Request, info: ModelInfo) -> float:
    """Steps that speaking a request is likely to take, as far as its text tells."""
    wide = sum(char >= FIRST_WIDE for char in request.text)
    seconds = (len(request.text) - wide) / CHARS_PER_SECOND + wide / WIDE_CHARS_PER_SECOND + PAUSE_SECONDS
    steps = seconds * info.output_sample_rate / info.samples_per_step
    sampling, voice = request.sampling, request.conditioning
    steps = max(steps, sampling.min_steps)
    if sampling.max_steps is not None:
        steps = min(steps, sampling.max_steps)
    latents = (voice.reference, voice.prompt and voice.prompt.latents)
    return steps + sum(len(array) for array in latents if array is not None) / ENTERED_PER_STEP


def work_of_coding(patches: int) -> float:
    """Steps that encoding or decoding takes the time of."""
    return max(1.0, patches / CODED_PER_STEP)


def prefix_of(request: Request) -> int | None:
    """A key of what the prefix cache can hold of a request: its reference, by its ends; None without one.

    It needs to be quick rather than unique, for it only guides a choice.
    """
    reference = request.conditioning.reference
    if reference is None:
        return None
    ends = np.concatenate([reference[:SAMPLED_PATCHES], reference[-SAMPLED_PATCHES:]])
    return hash((reference.shape, ends.tobytes()))


class Balancer(Generic[C]):
    """Remembers where voices were spoken, and who had the last turn."""

    def __init__(self) -> None:
        self._knowing: OrderedDict[int, set[C]] = OrderedDict()  # by prefix, those who may have it in their cache
        self._turns: dict[C, int] = {}  # when each candidate was chosen last
        self._choices = 0

    def choose(self, candidates: Sequence[C], prefix: int | None) -> C:
        """The one with the least work of those that have a slot, or else of all; equals take turns."""
        knowing = self._knowing.get(prefix, set()) if prefix is not None else set()

        def rank(one: C) -> tuple[bool, float, int]:
            return one.full, one.work - (KNOWN_STEPS if one in knowing else 0.0), self._turns.get(one, 0)

        chosen = min(candidates, key=rank)
        self._choices += 1
        self._turns[chosen] = self._choices
        if prefix is not None:
            self._knowing.setdefault(prefix, set()).add(chosen)
            self._knowing.move_to_end(prefix)
            if len(self._knowing) > VOICES:
                self._knowing.popitem(last=False)
        return chosen

    def forget(self, candidate: C) -> None:
        """It has lost its cache, or is gone."""
        self._turns.pop(candidate, None)
        for knowing in self._knowing.values():
            knowing.discard(candidate)
