"""The words of a stream with their times, as agents get them."""

from __future__ import annotations

import pytest

from voxcpm_client.errors import InvalidArgument, Unavailable
from voxcpm_client.texts.timed_words import Pace, TimedWords
from voxcpm_client.values.results import Chunk, SegmentEvent
from voxcpm_grpc.audio import Encoding

RATE = 1000


def chunk(*events: tuple[str, int, int, int]) -> Chunk:
    """A chunk with segment events: kind, position, start and end of the text."""
    made = tuple(
        SegmentEvent(
            kind=kind,
            turn=0,
            segment=0,
            at_samples=at,
            text="",
            input_start=start,
            input_end=end,
            finish_reason="complete" if kind == "finished" else "",
            cut_reason="sentence",
        )
        for kind, at, start, end in events
    )
    audio = {"audio": b"", "sequence": 0, "offset": 0, "sample_count": 0, "turn": 0, "segment": 0}
    return Chunk(sample_rate=RATE, encoding=Encoding.PCM_S16LE, events=made, **audio)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, my friend. ", ["Hello,", " my", " friend. "]),
        (" one  two\n", [" one", "  two\n"]),
        ("你好，世界。ok", ["你", "好，", "世", "界。", "ok"]),
        ("  ", ["  "]),
        ("", []),
    ],
)
def test_the_words_of_a_segment_are_its_text(text, words):
    timed = TimedWords(Pace())
    timed.sent(text)
    assert [word.text for word in timed.of(chunk(("started", 0, 0, len(text))))] == words


def test_the_words_are_known_when_their_segment_begins_and_share_its_time():
    timed = TimedWords(Pace())
    timed.sent("aaaa bbbb")
    timed.sent(". cccc dddd.")
    first = list(timed.of(chunk(("started", 0, 0, 10))))
    assert [word.text for word in first] == ["aaaa", " bbbb."]
    assert first[0].start == 0 and first[0].end == first[1].start == pytest.approx(first[1].end / 2)
    assert list(timed.of(chunk(("finished", 9000, 0, 10)))) == []
    second = list(timed.of(chunk(("started", 9500, 11, 21))))
    assert "".join(word.text for word in [*first, *second]) == "aaaa bbbb. cccc dddd."
    assert (second[0].start, second[0].end) == (9.5, pytest.approx(14.0))  # at the pace of the first segment


def test_the_pace_follows_a_change_of_speed():
    pace = Pace()
    for seconds in (10.0,) * 5 + (5.0,) * 4:
        pace.learn(100, seconds)
    assert 0.05 < pace.letter_seconds < 0.055


def test_text_that_is_not_spoken_is_left_over():
    timed = TimedWords(Pace())
    timed.sent("Yes. 😀")
    assert [word.text for word in timed.of(chunk(("started", 0, 0, 4)))] == ["Yes."]
    assert (timed.rest(), timed.rest()) == (" 😀", "")


def test_only_the_refusal_of_a_text_without_letters_is_no_error():
    refusal = InvalidArgument("there is nothing to speak", field="text", reason="INVALID_REQUEST")
    timed = TimedWords(Pace())
    timed.sent("😀 ...")
    assert timed.refused(refusal)
    assert not timed.refused(Unavailable("no server answers"))
    assert not timed.refused(InvalidArgument("half of a character", field="text"))  # of the client itself
    timed.sent("1")
    assert not timed.refused(refusal)
