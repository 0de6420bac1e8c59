"""Text from Debian's word lists, and speech from its synthesizer, for the bundled voice."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.clients.recipe import run_command

from tools.voice import phonemes, speak, text
from tools.voice.crops import Crops
from tools.voice.dataset import RATE, Speech
from tools.voice.phonemes import Phonemizer, read_texts
from tools.voice.voices import VOICES

ROOT = Path(__file__).parents[3]
HELD_OUT = read_texts(text.HELD_OUT)
SHARE = Path(os.environ.get("SYSTEM_TEST_DEBIAN", "/"), "usr/share")  # the lists, unless the host has them
WRITE_TEXT = f"""
from pathlib import Path
from tools.voice import phonemes, text
if Path({str(SHARE)!r}, "wordnet").exists():
    text.WORDNET, text.SCOWL = Path({str(SHARE)!r}, "wordnet"), Path({str(SHARE)!r}, "dict/scowl")
text.main()
"""


def write_text(out, *flags):
    command = [sys.executable, "-c", WRITE_TEXT, str(out), "--sentences", "2000", *map(str, flags)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_training_text_is_plain_repeatable_and_far_from_the_held_out(tmp_path):
    for name in ("one", "other"):
        write_text(tmp_path / name)
    assert (tmp_path / "one/held_out.txt").read_text().splitlines() == HELD_OUT
    written = (tmp_path / "one/sentences.txt").read_text()
    assert written == (tmp_path / "other/sentences.txt").read_text()
    sentences = written.splitlines()
    assert len(set(sentences)) == 2000
    near = text.too_near(HELD_OUT)
    assert not any(near(sentence) for sentence in sentences)
    assert {len(text.words(sentence)) for sentence in sentences} >= set(range(1, 16))
    assert all(sentence.isascii() and sentence[-1] in ".?!" for sentence in sentences)

    write_text(tmp_path / "later", "--seed", 2, "--without", tmp_path / "one/sentences.txt")
    later = (tmp_path / "later/sentences.txt").read_text().splitlines()
    assert len(set(later)) == 2000 and set(later).isdisjoint(sentences)
    assert not any(near(sentence) for sentence in later)


def test_the_teacher_speaks_and_goes_on_where_it_stopped(tmp_path):
    lines = tmp_path / "lines.txt"
    lines.write_text("Hello there.\nThe cat sat on the mat.\n")
    run_command("phonemes", lines, tmp_path / "lines.jsonl", "--every-voice")
    outputs = [run_command("speak", tmp_path / "lines.jsonl", tmp_path / "out", "--toy") for _ in range(2)]
    assert "1/1 shards" in outputs[0] and "shards" not in outputs[1]  # the second run had nothing left to do
    speech = Speech(tmp_path / "out")
    assert speech.complete and [one.voice for one in speech] == [voice.name for voice in VOICES] * 2
    assert all(0.1 < len(one.samples) / RATE < 5 for one in speech)


def test_the_teacher_stops_at_a_time_and_does_not_go_on(tmp_path, monkeypatch):
    """The first shard of a process is spoken in any case, so that there is something to train on."""
    monkeypatch.setattr(speak, "SHARD", 1)
    lines = tmp_path / "lines.txt"
    lines.write_text("Hello there.\nAnd here.\n")
    run_command("phonemes", lines, tmp_path / "lines.jsonl")
    for flags in (("--until", 1), ()):
        run_command("speak", tmp_path / "lines.jsonl", tmp_path / "out", "--toy", *flags)
    speech = Speech(tmp_path / "out")
    assert speech.complete and [one.text for one in speech] == ["Hello there."]
    with pytest.raises(ValueError, match="fewer than a crop"):
        Crops(speech, 1, 10 * RATE, torch.device("cpu"), 1)


def test_many_texts_have_the_phonemes_of_each(monkeypatch):
    whole = Phonemizer(False)(["One, two.", "Three?", "Four."])
    monkeypatch.setattr(phonemes, "AT_ONCE", 2)
    assert Phonemizer(False)(["One, two.", "Three?", "Four."]) == whole and len(whole) == 3


def test_the_phonemes_are_those_of_the_accent():
    american, british = (Phonemizer(british)(["A bath, no?", "Better."]) for british in (False, True))
    assert american == ["ɐ bˈæθ, nˈoʊ?", "bˈɛɾɚ."]
    assert british == ["ɐ bˈaθ, nˈəʊ?", "bˈɛtə."]
