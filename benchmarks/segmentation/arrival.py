"""Texts that arrive over time, in virtual time: nothing sleeps.

A piece is one word with the white space before it, or one visible character in scripts without spaces between words.
Pieces arrive INTERVAL apart. The text pauses for PAUSE after its last piece, and in a dialogue after each sentence. At
the end it is flushed. `pause` of the segmenter is called as the server calls it: once, `max_wait` after the last piece.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from benchmarks.segmentation.corpus import Text, spoken_end
from benchmarks.segmentation.rules import Cut, Rule
from benchmarks.segmentation.scoring import Trial
from voxcpm_server.text.words.characters import is_joined

INTERVAL = 0.05  # seconds
PAUSE = 3.0  # seconds
UNSPACED = {"ja", "km", "lo", "my", "th", "zh"}  # languages without spaces between words
_WORD = re.compile(r"\s*\S+|\s+$")


class PausingRule(Rule, Protocol):
    """A rule that also knows pauses, such as the server's segmenter."""

    @property
    def max_wait(self) -> float | None:
        """Seconds of a pause after which `pause` is due; None if the waiting text needs more text."""
        ...

    def pause(self) -> Iterable[Cut]: ...

    def flush(self) -> Iterable[Cut]: ...


@dataclass(frozen=True, slots=True)
class TimedCut:
    """A segment that ends before the code point `end`, cut after `fed` code points and `seconds`."""

    end: int
    fed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Arrival:
    """A text that has arrived. `complete` has the seconds at which the last character of each sentence arrived."""

    text: Text
    complete: tuple[float, ...]
    cuts: tuple[TimedCut, ...]

    @property
    def held(self) -> list[float]:
        """For each sentence, the seconds from its last character to the cut of the segment with its last letter.

        What follows that letter, such as an emoji, may come after the cut, and may never be cut.
        """
        return [
            max(0.0, self._cut_at(spoken_end(self.text.text[:stop])) - complete)
            for sentence, stop, complete in zip(self.text.sentences, self.text.stops, self.complete, strict=True)
            if spoken_end(sentence)
        ]

    def _cut_at(self, end: int) -> float:
        return next(cut.seconds for cut in self.cuts if cut.end >= end)

    @property
    def first(self) -> float:
        """The seconds from the end of the first sentence to the first cut; 0 if a cut was earlier."""
        return max(0.0, self.cuts[0].seconds - self.complete[0])

    @property
    def trial(self) -> Trial:
        """The cuts, for scores."""
        return Trial.of(self.text, ((cut.end, cut.fed) for cut in self.cuts))


def arrive(text: Text, segmenter: PausingRule, *, dialogue: bool = False) -> Arrival:
    """Let a text arrive at a new segmenter. dialogue: True for a pause after each sentence."""
    complete: list[float] = []
    cuts: list[TimedCut] = []
    now, fed = 0.0, 0
    stops = text.stops
    for start, stop in pairwise((0, *stops)):
        for piece in pieces(text.text[start:stop], text.language):
            fed += len(piece)
            cuts += (TimedCut(cut.end, fed, now) for cut in segmenter.feed(piece))
            gap = PAUSE if fed == stops[-1] or (dialogue and fed == stop) else INTERVAL
            wait = segmenter.max_wait
            if wait is not None and wait <= gap:
                cuts += (TimedCut(cut.end, fed, now + wait) for cut in segmenter.pause())
            if fed == stop:
                complete.append(now)
            now += gap
    cuts += (TimedCut(cut.end, fed, now) for cut in segmenter.flush())
    return Arrival(text, tuple(complete), tuple(cuts))


def pieces(text: str, language: str) -> Iterator[str]:
    """The pieces in which a text arrives. Together they are the text."""
    if language not in UNSPACED:
        yield from _WORD.findall(text)
        return
    start = 0
    for cut in range(1, len(text)):
        if not text[start:cut].isspace() and not is_joined(text, cut):
            yield text[start:cut]
            start = cut
    yield text[start:]
