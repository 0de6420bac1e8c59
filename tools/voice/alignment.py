"""The letter of a text that sounds at each moment, from the phonemes of the text and their times.

A language model that is asked for these letters learns where it is in a text. One that was not still spoke babble, of
the right length and in the right voice, after 28,000 steps of 450 s.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np

from tools.voice.dataset import STEP

UNITS: tuple[Callable[[str], list[tuple[int, int]]], ...] = (
    lambda text: [match.span() for match in re.finditer(r"\S+", text)],  # words
    lambda text: [match.span() for match in re.finditer(r"[^.,!?;:\s][^.,!?;:]*", text)],  # clauses
    lambda text: [(0, len(text))],
)


def places(text: str, phonemes: str) -> np.ndarray:
    """The letter of each phoneme: float [phonemes], an index into the text and the share of the letter that is over.

    Words that are as many in both belong together, or else clauses, or else all. Letters and phonemes of two parts that
    belong together proceed in proportion: espeak writes "42" as two words, and "of the" as one.
    """
    pairs = ((units(text), units(phonemes)) for units in UNITS)
    spans, sounds = next((spans, sounds) for spans, sounds in pairs if len(spans) == len(sounds))
    return np.interp(np.arange(len(phonemes)), np.ravel(sounds), np.ravel(spans))


def letters(text: str, phonemes: str, ends: Sequence[int], start: int, samples: int) -> np.ndarray:
    """The letter in the middle of each STEP of a recording: int [steps], indices into the text.

    ends: the sample at which each phoneme ends. start, samples: the part of these samples that the recording holds
    """
    middle = start + STEP * np.arange(-(-samples // STEP)) + STEP // 2
    phoneme = np.searchsorted(ends, middle, side="right").clip(max=len(phonemes) - 1)
    return places(text, phonemes)[phoneme].astype(np.int64).clip(max=len(text) - 1)
