"""The choice of a replica for each call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from enum import IntEnum
from typing import Generic, TypeVar

import numpy as np

from voxcpm_grpc.request import ModelInfo, Request

CHARS_PER_SECOND = 14.0  # characters of speech in alphabetic scripts
WIDE_CHARS_PER_SECOND = 4.5  # characters in scripts that write syllables or words
FIRST_WIDE = "\u1100"  # it is the first Hangul letter; kana and Chinese characters follow it
PAUSE_SECONDS = 0.5  # seconds of silence around the speech
PREFILLED_PER_STEP = 64  # steps of a voice that enter the cache in the time of one step
CODED_PER_STEP = 16  # steps of speech that the codec encodes or decodes in the time of one step
CACHE_BONUS_STEPS = 32.0  # a replica with the voice in its cache is preferred up to this much more work: one sentence
READING_STEPS = 64.0  # a replica that has read the adapter of a request is preferred up to this much more work
MAX_VOICES = 4096  # the replicas of so many voices are remembered
SAMPLED_ENTRIES = 8  # entries at each end of a reference, which tell it from others

T = TypeVar("T")


class Room(IntEnum):
    """The room of a replica for a new stream. The more there is, the lower the number."""

    SLOT = 0  # a slot is free
    BATCH = 1  # a batch stream gives its slot up
    QUEUE = 2
    NONE = 3  # the queue is full


def seconds_of(text: str) -> float:
    """Estimate the seconds of speech of a text, or of a part of one."""
    wide = 0 if text.isascii() else sum(char >= FIRST_WIDE for char in text)
    return (len(text) - wide) / CHARS_PER_SECOND + wide / WIDE_CHARS_PER_SECOND


def work_of(request: Request, info: ModelInfo, appended: float = 0.0) -> float:
    """Estimate the steps that a request takes, from its text, its voice and its limits.

    appended: seconds of speech of the text that has come since
    """
    seconds = seconds_of(request.text) + appended + PAUSE_SECONDS
    steps = seconds * info.output_sample_rate / info.samples_per_step
    sampling, voice = request.sampling, request.conditioning
    steps = max(steps, sampling.min_steps or 0)
    if sampling.max_steps is not None:
        steps = min(steps, sampling.max_steps)
    prefilled = sum(part.steps for part in (voice.reference, voice.prompt) if part is not None)
    return steps + prefilled / PREFILLED_PER_STEP


def work_of_coding(steps: int) -> float:
    """The number of steps that take as long as encoding or decoding so many of speech."""
    return max(1.0, steps / CODED_PER_STEP)


def prefix_of(request: Request) -> int | None:
    """A hash of the part of a request that the prefix cache can hold, its reference; None without a reference.

    It samples the reference, because it only guides the choice of a replica and has to be fast.
    """
    reference = request.conditioning.reference
    if reference is None:
        return None
    arrays = {name: np.atleast_1d(array) for name, array in reference.content.items()}
    return hash(
        tuple(
            (name, array.shape, array[:SAMPLED_ENTRIES].tobytes(), array[-SAMPLED_ENTRIES:].tobytes())
            for name, array in sorted(arrays.items())
        )
    )


class Balancer(Generic[T]):
    """Chooses the replica with the least work, and remembers which replicas may have a voice in their cache."""

    def __init__(self) -> None:
        self._cached: OrderedDict[int, set[T]] = OrderedDict()  # each prefix has the replicas that may have it
        self._turns: dict[T, int] = {}  # each replica has the number of the choice that took it last
        self._choices = 0

    def choose(self, loads: Mapping[T, tuple[Room, float]], prefix: int | None) -> T:
        """Choose a replica with the most room, and of these one with the least work. Equal replicas take turns.

        `loads` are the room of each replica, and its work in steps.
        """
        cached = self._cached.get(prefix, set()) if prefix is not None else set()

        def rank(replica: T) -> tuple[Room, float, int]:
            room, work = loads[replica]
            return room, work - (CACHE_BONUS_STEPS if replica in cached else 0.0), self._turns.get(replica, 0)

        chosen = min(loads, key=rank)
        self._choices += 1
        self._turns[chosen] = self._choices
        if prefix is not None:
            self._cached.setdefault(prefix, set()).add(chosen)
            self._cached.move_to_end(prefix)
            if len(self._cached) > MAX_VOICES:
                self._cached.popitem(last=False)
        return chosen

    def forget(self, replica: T) -> None:
        """Forget a replica that has lost its cache or was removed."""
        self._turns.pop(replica, None)
        for cached in self._cached.values():
            cached.discard(replica)
