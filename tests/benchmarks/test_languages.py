"""Delays of dialogues in every script, from records that the tests make up."""

import pytest

from benchmarks.dialogue.calls import Dialogue, ReceivedChunk, Segment, SentMessage
from benchmarks.dialogue.scripts import Message
from benchmarks.languages.rows import Row, line, render, row
from benchmarks.languages.scripts import pauses, script
from benchmarks.segmentation.corpus import parse

(TEXT,) = parse("# en: note\nWe stay. |It rains. |Who calls? |Come in! |Sit down.\n")
MAX_WAIT = 0.25


def record(segments: list[int], audio: list[float], code: str = "OK") -> Dialogue:
    """The record of the first four sentences, in turns of two with pauses of 2 s, sent from 100 s on.

    segments: their ends. audio: the arrival of the first audio of each, in seconds after the first word.
    """
    written = script(TEXT, sentences=4, turn=2, pause=2)
    dialogue = Dialogue(script=written, engine_seconds=0.1, code=code)
    end = 0
    for message in written.messages:
        end += len(message.text)
        dialogue.sent.append(SentMessage(due=100 + message.at, time=100 + message.at, end=end))
    for index, (at, stop) in enumerate(zip(audio, segments, strict=True)):
        dialogue.segments.append(Segment(index=index, start=0, end=stop, cut_reason=""))
        dialogue.chunks.append(ReceivedChunk(time=100 + at, seconds=1.0, segment=index))
    return dialogue


def test_words_arrive_at_once_in_a_turn_and_later_after_a_pause():
    written = script(TEXT, sentences=4, turn=2, pause=2)
    assert written.text == "We stay. It rains. Who calls? Come in!" and written.sentence_ends == (8, 18, 29, 38)
    assert written.messages[:2] == (Message(0.0, "We"), Message(0.05, " stay."))
    assert [message.at for message in written.messages[2:6]] == pytest.approx([0.1, 0.15, 2.15, 2.2])
    assert pauses(written, 2) == (18,)
    assert pauses(written, 1) == (8, 18, 29)
    assert pauses(script(TEXT, sentences=5, turn=2, pause=2), 2) == (18, 29 + 9)


def test_characters_arrive_in_scripts_without_spaces():
    (text,) = parse("# th: note\nที่นี่ |ครับ\n")
    assert [message.text for message in script(text, sentences=2, turn=1, pause=1).messages] == [
        "ที่",
        "นี่",
        " ค",
        "รั",
        "บ",
    ]


def test_the_first_audio_counts_from_the_first_full_stop_and_a_pause_from_its_last_word():
    found = row("en", [record([9, 18, 38], [0.35, 0.6, 4.0])], 2, MAX_WAIT)
    assert (found.first.maximum, found.pause.maximum) == (pytest.approx(0.3), pytest.approx(0.45))
    assert (found.first.above, found.pause.above, found.pause.count) == (0, 0, 1)


def test_text_that_waits_over_the_pause_is_above_the_goal():
    found = row("en", [record([9, 38], [0.7, 2.5]), record([38], [0.02])], 2, MAX_WAIT)
    assert found.first.median == pytest.approx(0.325) and found.first.above == 1
    assert found.pause.maximum == pytest.approx(2.35) and found.pause.above == 1


def test_failed_calls_are_counted_and_not_measured():
    found = row("en", [record([9], [0.3], code="UNAVAILABLE")], 2, MAX_WAIT)
    assert (found.dialogues, found.first.median, found.codes) == (0, None, {"UNAVAILABLE": 1})
    assert line(found) == ["en", "0", "-", "-", "0", "0", "-", "-", "0", "UNAVAILABLE 1"]


def test_the_page_has_a_line_for_each_language():
    rows: list[Row] = [row("en", [record([9, 18, 38], [0.35, 0.6, 4.0])], 2, MAX_WAIT)]
    conditions = {"sentences": 4, "turn": 2, "pause_s": 2.0, "max_wait_s": MAX_WAIT, "options": {}, "versions": {}}
    page = render(conditions | {"run": "now", "command": "python", "model": "demo"}, rows)
    assert "| en | 1 | 300 | 300 | 0 | 1 | 450 | 450 | 0 | - |" in page and "1250 ms" in page
