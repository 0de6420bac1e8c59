"""The times of words, as values and as subtitles."""

import json
import re
import sys

import pytest
from support.clients.commands import cli_runner

from voxcpm_client import Audition, Client, WordTime
from voxcpm_client.cli import main
from voxcpm_client.texts.subtitles import subtitles

RATE = 1000
RUN = 160  # samples of a character of the fake server, at 16 kHz: 10 ms
RECORDING = b"RIFF"


@pytest.fixture
def run(server, tmp_path, monkeypatch):
    """Runs the program against the server, in an empty directory, on a machine without a sound library."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VOXCPM_CLIENT_TARGET", server.target)
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    return lambda *arguments: cli_runner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def client(server):
    with Client(server.target) as client:
        yield client


def words(text: str, begin: int = 0, input_start: int = 0, turn: int = 0, pace: int = 100) -> list[WordTime]:
    """The words of a text, each character of which takes `pace` milliseconds."""
    return [
        WordTime(
            text=word[0],
            start_samples=begin + word.start() * pace,
            end_samples=begin + word.end() * pace,
            input_start=input_start + word.start(),
            input_end=input_start + word.end(),
            turn=turn,
            segment=0,
        )
        for word in re.finditer(r"\S+", text)
    ]


def shown(text: str) -> list[tuple[str, ...]]:
    return [one.lines for one in subtitles(words(text, pace=50), RATE)]


def test_words_arrive_with_chunks_and_all_of_them_in_the_summary_and_the_speech(client, server):
    with client.speak(["One two. ", "Three"], word_timestamps=True) as stream:
        chunks = list(stream)
    assert server.streams[-1].config.word_timestamps
    found = [word for chunk in chunks for word in chunk.words]
    assert [(word.text, word.start_samples // RUN, word.end_samples // RUN) for word in found] == [
        ("One", 0, 3),
        ("two.", 4, 8),
        ("Three", 9, 14),
    ]
    assert stream.summary is not None and stream.summary.words == tuple(found)
    assert not chunks[-1].audio and chunks[-1].words[0].text == "Three"
    assert client.say(["One two. ", "Three"], word_timestamps=True).words == tuple(found)
    assert client.say("One").words == ()


def test_words_of_previews_and_auditions_are_placed_in_their_own_audio(client, server):
    voice = client.add_reference(
        RECORDING, preview=Audition("Hello you."), auditions=["One two."], word_timestamps=True
    )
    assert server.calls[-1].received[0].config.preview.word_timestamps
    for speech, text in ((voice.preview, "Hello you."), (voice.auditions[0], "One two.")):
        assert [word.text for word in speech.words] == text.split()
        assert speech.words[0].start_samples == 0
        assert speech.words[-1].end_samples == len(text) * RUN == len(speech.samples)


def test_say_writes_webvtt(run, server, tmp_path):
    result = run("say", "Hello <there>! How are you?", "--out", "a.wav", "--subtitles", "a.vtt")
    assert result.exit_code == 0, result.output
    assert server.streams[-1].config.word_timestamps
    assert (tmp_path / "a.vtt").read_text("utf-8") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:00.150\nHello &lt;there&gt;!\n\n00:00:00.150 --> 00:00:01.150\nHow are you?\n"
    )


def test_say_writes_srt_and_the_report_has_the_words(run, tmp_path):
    result = run("say", "Hello & you! How are you?", "--out", "a.wav", "--subtitles", "a.SRT", "--json")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "a.SRT").read_text("utf-8") == (
        "1\n00:00:00,000 --> 00:00:00,130\nHello & you!\n\n2\n00:00:00,130 --> 00:00:01,130\nHow are you?\n"
    )
    assert [word["text"] for word in json.loads(result.stdout)["summary"]["words"]][:2] == ["Hello", "&"]


@pytest.mark.parametrize(
    ("file", "fault"), [("a.txt", "must end in .vtt or .srt"), ("none/a.vtt", "there is no folder")]
)
def test_a_file_that_cannot_have_subtitles_is_refused_before_the_call(run, server, file, fault):
    result = run("say", "Hello.", "--out", "a.wav", "--subtitles", file)
    assert result.exit_code == 2 and fault in result.stderr
    assert not server.streams


def test_a_server_without_word_times_costs_a_warning(run, server):
    server.times_words = False
    result = run("say", "Hello.", "--out", "a.wav", "--subtitles", "a.vtt")
    assert result.exit_code == 0
    assert "a.vtt is empty: the server sent no times of words" in result.stderr


def test_subtitles_end_with_sentences_lines_pauses_and_turns():
    assert shown("One. Two? Three") == [("One.",), ("Two?",), ("Three",)]
    assert shown('He said "no." Then he went.') == [('He said "no."',), ("Then he went.",)]
    long = "This sentence has more words than fit into a line and even into two lines of a subtitle on a screen."
    assert " ".join(line for lines in shown(long) for line in lines) == long
    assert all(len(lines) <= 2 and max(map(len, lines)) <= 42 for lines in shown(long))
    apart = subtitles([*words("One"), *words("two", begin=2000)], RATE)
    assert [one.lines for one in apart] == [("One",), ("two",)]
    turns = subtitles([*words("One"), *words("two", begin=300, turn=1)], RATE)
    assert [one.lines for one in turns] == [("One",), ("two",)]
    slow = subtitles(words("One two three four five six seven", pace=500), RATE)
    assert all(one.end - one.begin <= 7.0 for one in slow)


def test_scripts_without_spaces_are_joined_and_count_two_columns():
    text = "今天天气很好我们一起去公园散步然后再去吃一点东西好不好"
    characters = [
        WordTime(
            text=char,
            start_samples=100 * at,
            end_samples=100 * at + 100,
            input_start=at,
            input_end=at + 1,
            turn=0,
            segment=0,
        )
        for at, char in enumerate(text)
    ]
    (one,) = subtitles(characters, RATE)
    assert one.lines == (text[:21], text[21:])


def test_the_delay_of_the_codec_moves_subtitles():
    (one,) = subtitles(words("Hello"), RATE, delay_samples=250)
    assert (one.begin, one.end) == (0.25, 1.25)
