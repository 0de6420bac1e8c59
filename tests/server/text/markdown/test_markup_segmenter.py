"""Text with markup is cut into segments as its plain text is, and their places are those of the caller's text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from voxcpm_server.text.markup.output import LONGEST_SILENCE
from voxcpm_server.text.segments.markup_segmenter import MarkupSegmenter
from voxcpm_server.text.segments.segmenter import DOUBTFUL_WAITS
from voxcpm_server.text.words.characters import spoken
from voxcpm_server.values.inputs import Segmentation
from voxcpm_server.values.outputs import Segment

WAIT = Segmentation().max_wait
PARTS = [
    *(
        "**Bold one. Bold two.** ",
        "A [link](http://x.y/z). ",
        "`code` here. ",
        "\n\n```py\nx = 1\n```\n",
        "\n# Title\n",
    ),
    *("\n- item\n- **item** two\n", "\n| A | B |\n|---|---|\n| 1 | 2 |\n\n", "![image](x.png) ", "<!-- hidden 1 -->"),
    *(
        "<think>Hm. 5.</think>\n\n",
        "Plain words. ",
        "2 * 3 ",
        "[open ",
        "*open ",
        "x &amp; y. ",
        "<b>Yes.</b> ",
        "你好。",
    ),
    *("\n\n", "\n---\n", "End", "[^1]", "\n[^1]: Note.\n", "\n[r]: http://x\n"),
]
TEXT = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)


def segments_of(*parts: str) -> list[Segment]:
    segmenter = MarkupSegmenter(Segmentation())
    segments = [segment for part in parts for segment in segmenter.feed(part)]
    return segments + list(segmenter.flush())


@settings(max_examples=100, deadline=None)
@given(TEXT, st.integers(1, 7))
def test_every_division_into_messages_gives_the_same_segments(text: str, size: int):
    whole = segments_of(text)
    assert segments_of(*text) == whole
    assert segments_of(*(text[at : at + size] for at in range(0, len(text), size))) == whole


@settings(max_examples=100, deadline=None)
@given(TEXT)
def test_segments_stand_side_by_side_and_words_have_their_places(text: str):
    segments = segments_of(text)
    assert [segment.index for segment in segments] == list(range(len(segments)))
    end = 0
    for segment in segments:
        assert segment.start == end
        assert segment.end > segment.start
        end = segment.end
        assert segment.text == spoken(segment.source)
        assert bool(segment.text) == bool(segment.ends)
        assert segment.place(0) == segment.start
        for at, char in enumerate(segment.source, 1):
            place = segment.place(at)
            assert segment.start <= place <= segment.end
            if char.isalnum():
                assert text[place - 1] in (char, ";")
    assert end <= len(text)


def test_a_listener_has_heard_words_and_not_the_address_of_a_link():
    (segment,) = segments_of("Read [the page](http://example.com/a/b/c), **please**.")
    assert segment.source == "Read the page, please."
    assert segment.place(len("Read the")) == len("Read [the")
    assert segment.place(len("Read the page, please")) == len("Read [the page](http://example.com/a/b/c), **please")


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("**First sentence. Second sentence.** Third.", ["First sentence."]),
        ("Here is the code:\n```py\n", ["Here is the code:"]),
        ("- apples\n- p", ["apples"]),
        ("# Title\n", ["Title"]),
        ("**Title**\n", ["Title"]),
        ("| a | b |\n", ["a, b"]),
    ],
)
def test_a_segment_leaves_before_what_follows_is_complete(text: str, before: list[str]):
    segmenter = MarkupSegmenter(Segmentation())
    assert [segment.text for segment in segmenter.feed(text)][: len(before)] == before


@pytest.mark.parametrize(
    "text", ["**Yes.**", "*Yes.*", "Yes!", "`x` is **it**.", "[Done.]", "[Yes.](http://x.y)", "You &amp; me."]
)
def test_a_pause_speaks_a_sentence_with_its_marks(text: str):
    segmenter = MarkupSegmenter(Segmentation())
    assert not list(segmenter.feed(text))
    assert segmenter.max_wait == WAIT
    (segment,) = segmenter.pause()
    assert (segment.start, segment.end) == (0, len(text))
    assert segmenter.max_wait is None
    assert not list(segmenter.flush())


def test_a_pause_leaves_a_link_that_has_begun_behind_the_sentence_before_it():
    segmenter = MarkupSegmenter(Segmentation())
    assert not list(segmenter.feed("All done. [The pa"))
    assert segmenter.max_wait == WAIT
    assert [segment.text for segment in segmenter.pause()] == ["All done."]
    assert segmenter.max_wait == DOUBTFUL_WAITS * WAIT
    assert not list(segmenter.feed("ge](http://x.y) has more"))
    assert [segment.text for segment in segmenter.flush()] == ["The page has more"]


def test_an_abbreviation_before_emphasis_waits_longer():
    segmenter = MarkupSegmenter(Segmentation())
    assert not list(segmenter.feed("I asked Dr."))
    assert segmenter.max_wait == DOUBTFUL_WAITS * WAIT
    assert not list(segmenter.feed(" *Smith"))
    assert segmenter.max_wait == DOUBTFUL_WAITS * WAIT
    assert [segment.text for segment in segmenter.pause()] == ["I asked Dr. *Smith"]


def test_a_silent_segment_comes_as_soon_as_it_is_complete():
    segmenter = MarkupSegmenter(Segmentation())
    text = "Look:\n```\ncode\n```\n"
    assert [(segment.text, segment.end) for segment in segmenter.feed(text)] == [("Look:", 6), ("", len(text))]


def test_text_that_is_left_out_does_not_wait():
    segmenter = MarkupSegmenter(Segmentation())
    text = "Look:\n```\n" + "x = 1\n" * 10_000
    first, *silent = segmenter.feed(text)
    assert segmenter.pending <= 1
    assert first.text == "Look:"
    assert {segment.text for segment in silent} == {""}
    assert len(text) - silent[-1].end < LONGEST_SILENCE, "callers that wait for their text to be taken go on"
    assert [(segment.start, segment.end) for segment in segmenter.flush()] == [(silent[-1].end, len(text))]
    by_character = MarkupSegmenter(Segmentation())
    assert [segment for char in text for segment in by_character.feed(char)] == [first, *silent]
