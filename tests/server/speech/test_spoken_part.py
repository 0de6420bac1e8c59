"""The part of a text that a model has read, whatever of the text had arrived by then."""

from __future__ import annotations

from typing import Any

import pytest

from voxcpm_grpc.events import Finished, FinishReason
from voxcpm_server.speech.calls.spoken_part import SpokenPart
from voxcpm_server.text.lexicon import Lexicon
from voxcpm_server.text.segments.arriving_text import ArrivingText
from voxcpm_server.values.inputs import TurnConfig
from voxcpm_server.values.outputs import CutReason


class Call:
    """Has the text of an EngineCall."""

    def __init__(self, text: str) -> None:
        self.text, self.ended = text, False

    def append(self, text: str, *, last: bool) -> None:
        assert not self.ended
        self.text += text
        self.ended = last


def arriving(*texts: str) -> ArrivingText:
    made = ArrivingText(TurnConfig(), 0, 0, Lexicon(), spaced=False, after="")
    for text in texts:
        made.add(text)
    return made


def begin(text: ArrivingText, start: int, before: str = "") -> tuple[SpokenPart, Any]:
    part = SpokenPart(text, 0, start, lambda segment: None)
    call: Any = Call(part.begun(before + part.segment.text))
    part.attach(call)
    return part, call


def ended(characters: int, unread: str) -> Finished:
    return Finished(reason=FinishReason.STOP, steps=9, engine_seconds=1.0, unread=unread, characters=characters)


@pytest.mark.parametrize("before", ["", " "])
def test_text_that_came_too_late_for_the_model_is_not_read(before):
    text = arriving("One two th")
    part, call = begin(text, 0, before)
    text.add("ree four five ")
    assert call.text == before + "One two three four five "
    segment = part.finish(ended(len(before + "One two thr"), " thr"))  # the rest was under way
    assert (segment.text, segment.cut, part.end) == ("One two", CutReason.UNREAD, len("One two"))
    text.add("six ")
    assert not call.ended and call.text.endswith("five ")  # the call is over
    following, call = begin(text, part.end)
    assert call.text == "three four five six "
    text.end(CutReason.FLUSH)
    assert call.ended and following.segment.text == "three four five six"
    segment = following.finish(ended(len(call.text), ""))
    assert (segment.text, segment.cut, following.end) == ("three four five six", CutReason.FLUSH, len(text.text))


def test_marks_that_were_not_read_are_no_part_of_their_own():
    text = arriving("One two ...")
    text.end(CutReason.FLUSH)
    part, call = begin(text, 0)
    segment = part.finish(ended(len(call.text), " ..."))
    assert (segment.text, segment.end, segment.cut) == ("One two ...", 11, CutReason.FLUSH)


def test_a_part_of_which_nothing_was_read_begins_again():
    text = arriving("One two ")
    part, call = begin(text, 0)
    segment = part.finish(ended(len(call.text), "One two "))
    assert (part.end, segment.text, segment.end) == (0, "", 0)
