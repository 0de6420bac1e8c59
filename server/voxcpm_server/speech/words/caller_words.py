"""The words of the caller's text in a segment, and the speech for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from voxcpm_server.text.words.alignment import aligned
from voxcpm_server.text.words.spoken_words import weights, word_ends
from voxcpm_server.values.outputs import Segment


@dataclass(frozen=True, slots=True)
class CallerWord:
    """A word of the caller's text, or several that are heard as a whole because a lexicon replaced them.

    start, end: range in `Segment.source`, without white space at its ends
    first, last: the words of `Segment.text` that are spoken where it begins and where it ends, as numbers from 0; empty
        if nothing is spoken for it
    begins, ends: the shares of their speech that lie before the word begins, and before it ends, 0 to 1; others than 0
        and 1 if several words of the caller share it
    """

    start: int
    end: int
    first: range
    last: range
    begins: float
    ends: float


def caller_words(segment: Segment) -> Iterator[CallerWord]:
    """The words of the caller's text, in order.

    Where several words were replaced together, each has its share of the speech by its own weight.
    """
    begun: CallerWord | None = None  # the whole of this word goes on
    for word in _divided(segment):
        whole = word if begun is None else replace(word, start=begun.start, first=begun.first, begins=begun.begins)
        if any(start < word.end < stop for start, stop in segment.undivided):
            begun = whole
        else:
            begun = None
            yield whole


def _divided(segment: Segment) -> Iterator[CallerWord]:
    source = segment.source
    written = list(accumulate(weights(source), initial=0.0))
    ends = [0, *word_ends(source)]
    for words, spoken in aligned(source, segment.text):
        before = written[ends[words.start]]
        whole = written[ends[words.stop]] - before
        begins = 0.0
        for word in words:
            end = ends[word + 1]
            share = (written[end] - before) / whole if whole else 1.0
            start = ends[word]
            while start < end - 1 and source[start].isspace():
                start += 1
            yield CallerWord(start, end, spoken, spoken, begins, share)
            begins = share
