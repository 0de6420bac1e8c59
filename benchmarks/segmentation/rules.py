"""The rules that are compared. Each text gets a new rule, which receives the text in parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import sentencex

from voxcpm_server.text.segments.segmenter import Segmenter
from voxcpm_server.values.inputs import Segmentation

CJK_TERMINATORS = "。！？｡．"
CLOSERS = "”’」』）〉》】)\"'"


class Cut(Protocol):
    """A segment: a range of code points in the text fed so far."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


class Rule(Protocol):
    """Cuts a text into segments while it arrives."""

    def feed(self, text: str, /) -> Iterable[Cut]:
        """Add text, and return the segments that are complete now."""
        ...


def segmenter(language: str) -> Segmenter:
    """The server's rule without the language, which a caller need not name."""
    return Segmenter(Segmentation())


def told(language: str) -> Segmenter:
    """The server's rule with the language."""
    return Segmenter(Segmentation(language=language))


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int


class Lookahead:
    """The baseline: sentences of `sentencex`, with English rules for every language.

    A sentence is complete when two more have begun after it, or one if it ends with a CJK terminator.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0  # the text before this offset was returned

    def feed(self, text: str, /) -> list[Span]:
        self._text += text
        sentences = sentencex.segment("en", self._text)  # pyright: ignore[reportAttributeAccessIssue]
        spans, stop = [], 0
        for at, sentence in enumerate(sentences):
            stop += len(sentence)
            if sum(1 for later in sentences[at + 1 :] if later.strip()) < _needed(sentence):
                break
            if stop > self._at:
                spans.append(Span(self._at, stop))
                self._at = stop
        return spans


def _needed(sentence: str) -> int:
    """The number of sentences that must begin after this one before it is complete."""
    return 1 if sentence.rstrip().rstrip(CLOSERS).endswith(tuple(CJK_TERMINATORS)) else 2


RULES: Mapping[str, Callable[[str], Rule]] = {"segmenter": segmenter, "lookahead": lambda language: Lookahead()}
