"""Delays and silences of text that is written slowly, from records that the tests make up."""

from itertools import islice

import pytest

from benchmarks.dialogue import playback, rows
from benchmarks.dialogue.calls import Dialogue, ReceivedChunk, Segment, SentMessage
from benchmarks.dialogue.scripts import Message, schedule, script, texts

SENTENCES = ("Two, three four.", "Five six.")  # full stops at 16 and 26


def record(
    segments: list[tuple[int, str]], chunks: list[tuple[float, float, int]], *, engine: float = 0.14, code: str = "OK"
) -> Dialogue:
    """The record of SENTENCES at 2 words a second from 10 s on, each message 2 ms late.

    segments: ends and cut reasons. chunks: arrivals in seconds after the first word, lengths and segments.
    """
    written = script(SENTENCES, schedule("2", 5))
    made, start = Dialogue(script=written, finished=12.002, engine_seconds=engine, code=code), 0
    for index, (end, reason) in enumerate(segments):
        made.segments.append(Segment(index=index, start=start, end=end, cut_reason=reason))
        start = end
    position = 0
    for message in written.messages:
        position += len(message.text)
        due = 10.0 + message.at
        made.sent.append(SentMessage(due=due, time=due + 0.002, end=position))
    made.chunks = [ReceivedChunk(time=10.002 + at, seconds=seconds, segment=segment) for at, seconds, segment in chunks]
    return made


WHOLE = [(17, ""), (26, "")]  # as the server counts: a segment has the space before the next word


def test_text_is_written_word_by_word_with_the_space_before_the_word():
    written = script(SENTENCES, schedule("4", 5))
    assert [message.text for message in written.messages] == ["Two,", " three", " four.", " Five", " six."]
    assert [message.at for message in written.messages] == [0, 0.25, 0.5, 0.75, 1.0]
    assert written.text == "Two, three four. Five six." and written.sentence_ends == (16, 26)


def test_a_pause_follows_the_first_full_stop():
    written = script(SENTENCES, schedule("pause", 5))
    assert [message.at for message in written.messages] == [0, 0.125, 0.25, 5.25, 5.375]
    assert written.messages[2].text.endswith(".") and written.messages[3].text.startswith(" ")


def test_all_at_once_is_one_message():
    written = script(SENTENCES, schedule("once", 5))
    assert written.messages == (Message(0.0, "Two, three four. Five six."),) and written.sentence_ends == (16, 26)


@pytest.mark.parametrize("name", ["0", "-1", "inf", "nan", "slowly"])
def test_other_schedules_are_refused(name):
    with pytest.raises(ValueError):
        schedule(name, 5)


def test_no_two_texts_are_alike():
    some = list(islice(texts(3, 7), 300))
    assert some == list(islice(texts(3, 7), 300)) != list(islice(texts(3, 8), 300))
    sentences = [sentence for text in some for sentence in text]
    assert len(set(sentences)) == 900 and len({" ".join(text[0].split()[:2]) for text in some}) == 300
    assert {len(sentence.split()) for sentence in sentences} <= set(range(6, 15))
    assert all(sentence.endswith(".") and sentence.count(".") == 1 for sentence in sentences)
    assert 0.2 < sum("," in sentence for sentence in sentences) / 900 < 0.8


def test_a_delay_runs_from_the_full_stop_and_is_split():
    dialogue = record(WHOLE, [(1.41, 1.0, 0), (2.0, 1.0, 1)])
    found = playback.delay(dialogue, 0.25)
    assert found.seconds == pytest.approx(0.41)  # the full stop is sent 1 s after the first word
    assert found.unavoidable == pytest.approx(0.25) and found.engine == 0.14
    assert found.overhead == pytest.approx(0.02)


@pytest.mark.parametrize(("max_wait", "wait"), [(0.25, 0.25), (0.7, 0.5), (0, 0.5)])
def test_the_wait_ends_with_the_next_word_or_with_the_servers_wait(max_wait, wait):
    dialogue = record(WHOLE, [(1.6, 1.0, 0), (2.0, 1.0, 1)])
    assert playback.delay(dialogue, max_wait).unavoidable == pytest.approx(wait)


def test_a_first_segment_shorter_than_its_sentence_counts_from_its_own_end():
    dialogue = record([(5, "clause"), (17, "sentence"), (26, "")], [(0.7, 1.0, 0), (1.5, 1.0, 1), (2.0, 1.0, 2)])
    found = playback.delay(dialogue, 0.25)
    assert found.seconds == pytest.approx(0.7)  # the comma is sent with the first word


def test_a_first_segment_of_two_sentences_hides_no_delay():
    dialogue = record([(26, "")], [(2.5, 1.0, 0)])
    assert playback.delay(dialogue, 0.25).seconds == pytest.approx(1.5)


def test_text_in_one_message_leaves_nothing_to_wait_for():
    dialogue = record(WHOLE, [(0.2, 1.0, 0), (0.4, 1.0, 1)])
    dialogue.script = script(SENTENCES, schedule("once", 5))
    dialogue.sent = [SentMessage(due=10, time=10.002, end=26)]
    found = playback.delay(dialogue, 0)
    assert found.seconds == pytest.approx(0.2) and found.unavoidable == 0


def test_playback_begins_with_the_first_audio_and_stops_without_audio():
    dialogue = record(WHOLE, [(1.4, 0.5, 0), (1.5, 0.5, 0), (2.7, 0.5, 1), (3.3, 0.5, 1)])
    played = playback.played(dialogue)
    assert [part.begin - 10.002 for part in played] == pytest.approx([1.4, 1.9, 2.7, 3.3])
    assert [part.silence for part in played] == pytest.approx([0, 0, 0.3, 0.1])
    assert [(part.segment, part.end - part.begin) for part in playback.stretches(dialogue)] == [
        (0, pytest.approx(1.0)),
        (1, pytest.approx(0.5)),
        (1, pytest.approx(0.5)),
    ]
    assert playback.underruns(dialogue) == pytest.approx([0.1])
    assert playback.wall(dialogue) == pytest.approx(1.3)


def test_silence_between_segments_is_late_only_after_the_text_was_sent():
    (border,) = playback.borders(record(WHOLE, [(1.4, 0.5, 0), (2.7, 0.5, 1)]), 0.25)
    assert border.silence == pytest.approx(0.8) and not border.inside
    assert border.late == pytest.approx(0.7)  # the last word was sent at 2.0, and there is no next word to wait for
    (border,) = playback.borders(record(WHOLE, [(1.4, 1.0, 0), (2.7, 0.5, 1)]), 0.25)
    assert border.silence == border.late == pytest.approx(0.3)
    (border,) = playback.borders(record(WHOLE, [(1.4, 0.5, 0), (1.9, 0.5, 1)]), 0.25)
    assert border.silence == border.late == pytest.approx(0)


def test_a_border_is_inside_a_sentence_or_between_two():
    chunks = [(0.7, 0.5, 0), (1.5, 0.5, 1), (2.0, 0.5, 2)]
    named = playback.borders(record([(5, "clause"), (17, "sentence"), (26, "")], chunks), 0.25)
    unnamed = playback.borders(record([(5, ""), (17, ""), (26, "")], chunks), 0.25)
    assert [border.inside for border in named] == [border.inside for border in unnamed] == [True, False]


def test_a_row_counts_failures_apart():
    good = [record(WHOLE, [(1.4 + late, 0.5, 0), (2.0, 0.5, 1)]) for late in (0.0, 0.02, 0.14)]
    row = rows.row("2", 4, [*good, record([], [], code="UNAVAILABLE")], 0.25)
    assert row.dialogues == 3 and row.codes == {"UNAVAILABLE": 1} and row.segments == 6
    assert row.delay.p50_ms == pytest.approx(420) and row.delay.max_ms == pytest.approx(540)
    assert row.overhead.p50_ms == pytest.approx(30) and row.overhead_above == 2
    assert row.between.all.count == 3 and row.inside.all.count == 0 and row.inside.long_share is None
    assert row.between.all.max_ms == pytest.approx(100) and row.between.long_share == pytest.approx(0)
    assert row.sending_lag_p99_ms == pytest.approx(2) and row.server_text_to_audio.count == 0


def test_a_row_of_failures_has_no_times():
    row = rows.row("2", 1, [record([], [], code="NOT_FOUND")], 0.25)
    assert row.dialogues == 0 and row.codes == {"NOT_FOUND": 1} and row.delay.p50_ms is None
    assert rows.line(row).split()[:4] == ["2", "1", "0", "1"]


def test_an_example_tells_the_kinds_of_silence_apart():
    chunks = [(0.7, 0.5, 0), (1.5, 0.5, 1), (2.1, 0.5, 1), (3.0, 0.5, 2)]
    drawn = rows.example("2", 1, record([(5, "clause"), (17, ""), (26, "")], chunks))
    assert [part["silence"] for part in drawn["played"]] == ["", "inside", "underrun", "between"]
    assert [part["silence_s"] for part in drawn["played"]] == pytest.approx([0, 0.3, 0.1, 0.4])
    assert [word["ends_sentence"] for word in drawn["words"]] == [False, False, True, False, True]
