"""Forty answers in Markdown, each with what a reader would say, which another hand wrote before the rules.

Words are compared; white space, symbols such as emoji, and the marks at the ends of lines do not count. Numbers are not
written out here.
"""

from __future__ import annotations

import random
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import pytest

from voxcpm_server.text.markup.remover import MarkupRemover
from voxcpm_server.text.segments.markup_segmenter import MarkupSegmenter
from voxcpm_server.values.inputs import Segmentation

ANSWERS = sorted(Path(__file__).with_name("answers").glob("*.md"))
# The definition of a link `[leaflet]` follows it, so it could be any text in brackets, which stay.
LATE_DEFINITIONS = {"en-reference-links": ("the leaflet is", "the [leaflet] is")}
_END_MARKS = re.compile(r"[.,;:!?。！？：；，、]+$")


@dataclass(frozen=True)
class Word:
    """A word, and whether its line ends with it."""

    text: str
    is_last: bool

    def is_like(self, other: Word) -> bool:
        if self.is_last or other.is_last:
            return _END_MARKS.sub("", self.text) == _END_MARKS.sub("", other.text)
        return self.text == other.text


def words(text: str) -> list[Word]:
    visible = "".join(char for char in text if unicodedata.category(char) != "So" and char != "\ufe0f")
    lines = [line.split() for line in visible.splitlines()]
    return [Word(word, at == len(line)) for line in lines for at, word in enumerate(line, 1)]


def said(*parts: str) -> str:
    remover = MarkupRemover()
    pieces = [piece for part in parts for piece in remover.feed(part)]
    return "".join(piece.text for piece in pieces + remover.let_go())


def expected(answer: Path) -> str:
    text = answer.with_suffix(".txt").read_text("utf-8")
    return text.replace(*LATE_DEFINITIONS.get(answer.stem, ("", "")))


def test_there_are_forty_answers():
    assert len(ANSWERS) == 40


@pytest.mark.parametrize("answer", ANSWERS, ids=[answer.stem for answer in ANSWERS])
def test_an_answer_is_read_as_a_reader_would(answer: Path):
    text = answer.read_text("utf-8")
    found = said(text)
    ours, theirs = words(found), words(expected(answer))
    assert len(ours) == len(theirs) and all(map(Word.is_like, ours, theirs)), found
    assert said(*text) == found
    chance = random.Random(answer.stem)
    for _ in range(5):
        cuts = sorted(chance.choices(range(len(text)), k=20))
        assert said(*(text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True))) == found


@pytest.mark.parametrize("answer", ANSWERS, ids=[answer.stem for answer in ANSWERS])
def test_the_segments_of_an_answer_have_all_its_letters(answer: Path):
    text = answer.read_text("utf-8")
    segmenter = MarkupSegmenter(Segmentation())
    segments = [*segmenter.feed(text), *segmenter.flush()]
    spoken = "".join(segment.text for segment in segments)
    assert [char for char in spoken if char.isalnum()] == [char for char in said(text) if char.isalnum()]
    assert segments[-1].end <= len(text)
