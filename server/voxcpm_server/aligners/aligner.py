"""The interface of aligners, which find the words of a known text in its speech.

An aligner is a class without arguments, named by the setting `words.aligners`. It runs in a process of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np


@dataclass(frozen=True, slots=True)
class Timed:
    """A word that was found.

    word: its number in the text, from 0
    begin, end: seconds from the start of the speech
    """

    word: int
    begin: float
    end: float


class Alignment(Protocol):
    """The alignment of one piece of speech.

    The words that `push` and `finish` return are in order, each is returned once, and none of them changes later.
    Words that cannot be found may be left out.
    """

    def push(self, samples: np.ndarray) -> Sequence[Timed]:
        """Take more of the speech, float32 [n > 0] at the aligner's rate; returns the words that are certain now."""
        ...

    def finish(self, *, complete: bool) -> Sequence[Timed]:
        """The speech has ended; returns the other words.

        complete: False if the speech was cut off, perhaps before the last words
        """
        ...


class Aligner(Protocol):
    """Aligns speech of some languages."""

    @property
    def languages(self) -> Collection[str]:
        """The primary subtags of the languages that it knows, such as `en`."""
        ...

    @property
    def rate(self) -> int:
        """The sample rate in Hz that it takes."""
        ...

    def begin(self, words: Sequence[str], language: str) -> Alignment | None:
        """Begin an alignment; None if the words are not of its languages.

        words: the text as it is spoken, divided into words, with their marks
        language: one of `languages`; empty if the caller names none
        """
        ...
