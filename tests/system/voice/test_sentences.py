"""Text and speech for the bundled voice. The tests that need flite or word lists are in tests/system/voice."""

import random
from pathlib import Path

import numpy as np
import pytest

from tools.voice import grammar, text
from tools.voice.dataset import RATE, Plan, Speech, Utterance, write_plan, write_shard
from tools.voice.speak import FRAME, LEVEL, MARGIN, PEAK, jobs, level, read_texts, trim
from tools.voice.voices import VOICES, find

ROOT = Path(__file__).parents[3]
HELD_OUT = read_texts(text.HELD_OUT)


def test_a_voice_is_selected_by_its_description_in_parentheses():
    assert find("slt").tagged("Hello.") == "(a woman's voice)Hello."
    assert len({voice.description for voice in VOICES}) == len(VOICES)
    with pytest.raises(ValueError, match="slt, rms, awb"):
        find("kal")


# ------------------------------------------------------------------ grammar


def test_the_grammar_makes_plain_sentences():
    rules, draw = grammar.load(), random.Random(1)
    made = [rules.sentence(draw) for _ in range(3000)]
    assert len(set(made)) > 2500
    for sentence in made:
        assert sentence[0].isupper() or sentence[0].isdigit()
        assert sentence[-1] in ".?!" and not any(sign in sentence for sign in "{}()/|  ".strip())
        assert " a a" not in sentence and "  " not in sentence and len(text.words(sentence)) <= 30
    assert any(" an " in sentence for sentence in made)


def test_a_seed_always_gives_the_same_sentence():
    one, other = (grammar.load().sentence(random.Random(5)) for _ in range(2))
    assert one == other


def test_verbs_take_the_form_that_a_rule_names():
    rules = grammar.Grammar(
        "# a comment\nsentence = he {act.past} a(n) {thing}.\nact = eat/eats/ate/eating\nthing = egg\n"
    )
    assert rules.sentence(random.Random(1)) == "He ate an egg."


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("sentence = {nobody}\n", "nobody"),
        ("sentence = {act.future}\nact = go\n", "act.future"),
        ("sentence = a\nsentence = b\n", "exists already"),
        ("sentence\n", "no rule"),
    ],
)
def test_a_wrong_grammar_is_refused(rules, message):
    with pytest.raises(ValueError, match=message):
        grammar.Grammar(rules)


# --------------------------------------------------------------------- text


def test_sentences_get_a_capital_and_an_end():
    assert text.sentence("the dog barked") == "The dog barked."
    assert text.sentence("can you see it") == "Can you see it?"
    assert text.sentence("when it rains, we stay") == "When it rains, we stay."
    assert text.sentence("stop!") == "Stop!"


def test_only_plain_text_of_known_words_is_taken():
    texts = ["a red dog", "a red axolotl", "a dog", "a red -- dog", "a red dog (old)", "a red dog"]
    assert text.plain(texts, {"a", "red", "dog", "old"}) == ["A red dog."]


def test_there_are_a_hundred_different_held_out_sentences():
    assert len(HELD_OUT) == len(set(HELD_OUT)) == 100
    for sentence in HELD_OUT:
        assert sentence[0].isupper() and sentence[-1] in ".?" and 3 <= len(text.words(sentence)) <= 14


def test_a_text_near_a_held_out_sentence_is_found():
    near = text.too_near(["The train arrived ten minutes late.", "The dog ran."])
    assert near("the train arrived ten minutes late")
    assert near("He said the train arrived ten minutes before.")  # five words in a row
    assert near("The dog ran!") and near("The big dog ran.")
    assert not near("The bus was ten minutes late.") and not near("Cats sleep.")


# ------------------------------------------------------------------- speech


def tone(seconds: float, amplitude: float) -> np.ndarray:
    return np.rint(amplitude * np.sin(2 * np.pi * 200 * np.arange(round(seconds * RATE)) / RATE)).astype(np.int16)


def test_silence_at_the_ends_is_cut_to_the_margin_and_pauses_stay():
    quiet = np.zeros(RATE, np.int16)
    cut = trim(np.concatenate([quiet, tone(0.5, 8000), quiet, tone(0.5, 8000), quiet]))
    assert abs(len(cut) / RATE - (2.0 + 2 * MARGIN)) <= 2 * FRAME / RATE
    short = trim(np.concatenate([tone(0.5, 8000), quiet[:80]]))
    assert len(short) == RATE // 2 + 80  # there is no margin to keep
    with pytest.raises(ValueError, match="16000 samples are silent"):
        trim(quiet)


def test_loudness_is_equal_and_never_clips():
    x = level(tone(1, 500)).astype(float) / 32768
    assert np.sqrt((x**2).mean()) == pytest.approx(LEVEL, rel=1e-2)
    spike = tone(1, 20)
    spike[100] = 20000
    assert np.abs(level(spike)).max() == round(PEAK * 32767)


def test_voices_speak_in_turn_or_all():
    assert jobs(["a", "b", "c", "d"], every_voice=False) == [("slt", "a"), ("rms", "b"), ("awb", "c"), ("slt", "d")]
    assert jobs(["a"], every_voice=True) == [("slt", "a"), ("rms", "a"), ("awb", "a")]


def utterances(first: int, count: int) -> list[Utterance]:
    return [Utterance("slt", f"number {i}", np.full(10 + i, i, np.int16)) for i in range(first, first + count)]


def test_shards_are_read_as_soon_as_they_are_complete(tmp_path):
    write_plan(tmp_path, Plan(sentences=7, shards=3, digest="x"))
    speech = Speech(tmp_path)
    assert len(speech) == 0 and not speech.complete
    write_shard(tmp_path, 2, utterances(5, 2))
    write_shard(tmp_path, 0, utterances(0, 3))
    np.save(tmp_path / "speech-0001.npy", np.zeros(4, np.int16))  # its index is not written yet
    assert not speech.refresh() and speech.shards == (0, 2)
    assert [one.text for one in speech] == ["number 0", "number 1", "number 2", "number 5", "number 6"]
    write_shard(tmp_path, 1, utterances(3, 2))
    assert speech.refresh() and speech.complete and len(speech) == 7
    for i, utterance in enumerate(speech):
        assert utterance.samples.dtype == np.int16 and utterance.samples.tolist() == [i] * (10 + i)
    assert speech.seconds == sum(range(10, 17)) / RATE
    with pytest.raises(IndexError, match="utterance 7 of 7"):
        speech[7]


def test_a_folder_belongs_to_one_plan(tmp_path):
    write_plan(tmp_path, Plan(7, 3, "x"))
    write_plan(tmp_path, Plan(7, 3, "x"))
    with pytest.raises(ValueError, match="was started with"):
        write_plan(tmp_path, Plan(7, 3, "y"))
