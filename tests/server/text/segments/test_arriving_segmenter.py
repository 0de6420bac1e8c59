"""Texts that are spoken while they arrive end at the same places, whatever the division into messages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from voxcpm_server.text.lexicon import Lexicon, WordList
from voxcpm_server.text.segments.arriving_text import ArrivingSegmenter, ArrivingText
from voxcpm_server.text.words.characters import spoken
from voxcpm_server.values.inputs import Segmentation, SegmentationMode, TurnConfig
from voxcpm_server.values.outputs import CutReason, Segment

LIMIT = 12
PIECES = [
    "One",
    "two",
    "e.g.",
    "3.",
    "x" * 15,
    "北京的天气",
    "。",
    "很好",
    ". ",
    "! ",
    " ",
    "\n\n",
    "- ",
    "— ",
    "(",
    ")",
    "é",
    "\u0301",
    "gif",
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


def segmenter(
    config: TurnConfig | None = None, *, after: str = "", limit: int = LIMIT, turn: int = 0
) -> ArrivingSegmenter:
    segmentation = Segmentation(mode=SegmentationMode.TOKENS, max_chars=limit)
    lexicon = Lexicon(WordList({"gif": "jif", "one two": "1 2"}))
    return ArrivingSegmenter(segmentation, config or TurnConfig(), turn, after=after, lexicon=lexicon)


def texts(text: str, cuts: list[int], **options) -> list[ArrivingText]:
    made, places = segmenter(**options), [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    found = [one for start, end in pairwise(places) for one in made.feed(text[start:end])]
    return [*found, *made.flush()]


def segments(text: str, cuts: list[int], **options) -> list[Segment]:
    return [one.segment(number, 0) for number, one in enumerate(texts(text, cuts, **options))]


@given(TEXTS, st.lists(st.integers(0, 300), max_size=9), st.booleans())
@example("One is here. And two is there. ", [12, 13], False)
@example("(slow gif)One two. " * 3, [3, 6, 7], True)
def test_any_division_gives_the_same_segments(text, cuts, style_in_text):
    config = TurnConfig(style_in_text=style_in_text)
    made = segments(text, cuts, config=config)
    assert made == segments(text, [], config=config) == segments(text, [*range(len(text))], config=config)
    assert "".join(one.source for one in made) == text
    assert [(one.start, one.end) for one in made] == [*pairwise([0, *(one.end for one in made)])]


@given(TEXTS)
def test_segments_are_bounded_and_end_with_sentences_or_words(text):
    for one in segments(text, [])[:-1]:
        assert LIMIT <= len(one.source) <= 3 * LIMIT + len("\u0301" * text.count("\u0301"))
        assert one.cut in (CutReason.SENTENCE, CutReason.LIMIT)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("One is here. Two is there, too. Three.", ["One is here. ", "Two is there, too. ", "Three."]),
        ("Words and words without an end go on", ["Words and words without an", " end go on"]),
        ("Dr. Smith is here. He left.", ["Dr. Smith is here. ", "He left."]),
        ("今天天气很好。我们去公园玩吧。明天再说。", ["今天天气很好。我们去公园玩吧。", "明天再说。"]),
    ],
)
def test_a_long_segment_ends_with_its_sentence(text, found):
    assert [one.source for one in texts(text, [])] == found


@pytest.mark.parametrize("cuts", [[], [*range(40)]], ids=["whole", "by character"])
def test_a_description_is_the_style_of_its_turn_and_is_not_spoken(cuts):
    config = TurnConfig(style_in_text=True, style="loud")
    one, two = segments("(a calm man) Good evening to you all. And more.", cuts, config=config, limit=20)
    assert (one.text, one.turn_config.style, one.start, one.end) == ("Good evening to you all.", "a calm man", 0, 38)
    assert (two.text, two.turn_config.style) == ("And more.", "a calm man")
    [plain] = segments("No (calm) one.", cuts, config=config, limit=20)
    assert (plain.text, plain.turn_config.style) == ("No (calm) one.", "loud")
    [alone] = segments("(calm)", cuts, config=config)
    assert (alone.text, alone.turn_config.style) == ("(calm)", "loud")  # nothing follows it
    [read] = segments("(calm) one.", cuts, limit=20)
    assert read.text == "(calm) one."


def test_a_text_after_another_turn_begins_a_new_word():
    for after, text, spaced in (("x", "One", True), ("好", "北京", False), ("", "One", False)):
        [one] = segments(text, [], after=after)
        assert one.spaced is spaced


def test_a_part_behind_what_was_read_has_its_place_in_the_text():
    [text] = texts("See  my gif\u00ad now.", [], limit=99)
    assert text.text == "See my jif now." == spoken(text.text)
    read, rest = text.segment(0, 0, 6), text.segment(1, 6)
    assert (read.text, read.start, read.end, read.cut) == ("See my", 0, 7, CutReason.UNREAD)
    assert (rest.text, rest.start, rest.end, rest.cut) == ("jif now.", 7, 17, CutReason.FLUSH)
    assert (read.spaced, rest.spaced) == (False, True)
    assert rest.undivided == ((1, 5),)
    nothing = text.segment(1, 6, 6)
    assert (nothing.text, nothing.start, nothing.end) == ("", 7, 7)
