"""Aligners of speech in which each character of the text takes one step, as that of fake engines does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from voxcpm_server.aligners.aligner import Timed

STEP_SECONDS = 960 / 48000
LAG = 3  # steps after a word until it is certain


class StepAligner:
    """Knows when each word is spoken, and says it three steps later. A word `fault` is one of the aligner."""

    languages = frozenset({"en"})
    rate = 16000

    def begin(self, words: Sequence[str], language: str) -> StepAlignment | None:
        return None if "Unheard." in words else StepAlignment(words)


class StepAlignment:
    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._samples = self._returned = 0

    def push(self, samples: np.ndarray) -> Sequence[Timed]:
        self._samples += len(samples)
        return self._found(self._samples / StepAligner.rate - LAG * STEP_SECONDS)

    def finish(self, *, complete: bool) -> Sequence[Timed]:
        return self._found(self._samples / StepAligner.rate + STEP_SECONDS / 2)

    def _found(self, seconds: float) -> Sequence[Timed]:
        at, found = 0, list[Timed]()
        for number, word in enumerate(self._words):
            begin, end = at * STEP_SECONDS, (at + len(word)) * STEP_SECONDS
            at += len(word) + 1
            if number >= self._returned and end <= seconds:
                if word == "fault":
                    raise RuntimeError("this aligner is broken")
                found.append(Timed(number, begin, end))
        self._returned += len(found)
        return found


class BrokenAligner:
    """Does not start."""

    def __init__(self) -> None:
        raise FileNotFoundError("its model")
