"""Text and speech for the bundled voice. The tests that need a teacher or word lists are in tests/system/voice."""

import random
from pathlib import Path

import numpy as np
import pytest

from tools.voice import grammar, phonemes, text
from tools.voice.dataset import RATE, Plan, Speech, Utterance, end, write_plan, write_shard
from tools.voice.phonemes import Line, read_texts
from tools.voice.trimming import FRAME, LEVEL, MARGIN, PEAK, level, trim
from tools.voice.voices import VOICES, find

ROOT = Path(__file__).parents[3]
HELD_OUT = read_texts(text.HELD_OUT)


def test_a_voice_is_selected_by_its_description_in_parentheses():
    assert find("hazel").tagged("Hello.") == "(a woman's voice)Hello."
    assert len({voice.description for voice in VOICES}) == len(VOICES)
    with pytest.raises(ValueError, match="hazel, miles, george"):
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


def test_definitions_have_no_examples_and_no_remarks(tmp_path, monkeypatch):
    for kind in ("noun", "verb", "adj", "adv"):
        (tmp_path / f"data.{kind}").write_text("")
    (tmp_path / "data.noun").write_text(
        '1 x | (of a cat) a small noise;  a low (soft) sound; "the cat\'s noise; again"\n'
    )
    monkeypatch.setattr(text, "WORDNET", tmp_path)
    assert [one for one in text.definitions() if one] == ["a small noise", "a low sound"]
    assert list(text.examples()) == ["the cat's noise; again"]


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


@pytest.mark.parametrize("rate", [RATE, 16_000])
def test_silence_at_the_ends_is_cut_to_the_margin_and_pauses_stay(rate):
    quiet, sound = np.zeros(rate, np.int16), tone(0.5 * rate / RATE, 8000)
    cut = trim(np.concatenate([quiet, sound, quiet, sound, quiet]), rate)
    assert abs(len(cut) / rate - (2.0 + 2 * MARGIN)) <= 2 * FRAME
    short = trim(np.concatenate([sound, quiet[: round(FRAME * rate)]]), rate)
    assert len(short) == rate // 2 + round(FRAME * rate)  # there is no margin to keep
    with pytest.raises(ValueError, match=f"{rate} samples are silent"):
        trim(quiet, rate)


def test_loudness_is_equal_and_never_clips():
    x = level(tone(1, 500)).astype(float) / 32768
    assert np.sqrt((x**2).mean()) == pytest.approx(LEVEL, rel=1e-2)
    spike = tone(1, 20)
    spike[100] = 20000
    assert np.abs(level(spike)).max() == round(PEAK * 32767)


class Speller:
    """A phonemizer whose phonemes are the letters, with the accent before them."""

    def __init__(self, british: bool) -> None:
        self.british = british

    def __call__(self, texts):
        return [f"{'gb' if self.british else 'us'} {one}" for one in texts]


def test_voices_speak_in_turn_or_all_and_each_in_its_accent(monkeypatch):
    monkeypatch.setattr(phonemes, "Phonemizer", Speller)
    texts = ["One two three.", "Two three four.", "Three four five.", "Four five six.", "Five six seven."]
    in_turn = list(phonemes.lines(texts, every_voice=False))
    assert [line.voice for line in in_turn] == [voice.name for voice in (*VOICES, *VOICES[:2])]
    assert [line.text for line in in_turn] == texts
    assert [line.phonemes[:2] for line in in_turn[:4]] == ["us", "us", "gb", "us"]
    every = list(phonemes.lines(texts[:1], every_voice=True))
    assert [line.voice for line in every] == [voice.name for voice in VOICES]
    assert len(list(phonemes.lines(["Yes."], every_voice=False))) == len(VOICES)


@pytest.mark.parametrize(
    ("espeak", "teacher"),
    [
        ("həlˈoʊ, wˈɜːld!", "həlˈoʊ, wˈɜːld!"),
        ("fˈaɪvhˈʌndɹɪd", "fˈaɪv hˈʌndɹɪd"),
        ("lˈɒx nˈɛs ", "lˈɒk nˈɛs"),
        ("rˈaɪn", "ɹˈaɪn"),
    ],
)
def test_phonemes_are_those_that_the_teacher_knows(espeak, teacher):
    assert phonemes.translated(espeak) == teacher


def test_lines_are_read_as_they_were_written(tmp_path):
    (tmp_path / "lines").write_text('{"voice": "george", "text": "Hello.", "phonemes": "həlˈQ."}\n', encoding="utf-8")
    assert phonemes.read(tmp_path / "lines") == [Line("george", "Hello.", "həlˈQ.")]


def test_a_paragraph_is_longer_than_a_sentence():
    rules, draw = grammar.load(), random.Random(2)
    for _ in range(20):
        made = text.long(["The dog ran home.", "It rained."], rules, draw)
        assert text.MAX_WORDS < len(text.words(made)) <= text.LONG_WORDS


def utterances(first: int, count: int) -> list[Utterance]:
    return [Utterance("hazel", f"number {i}", np.full(10 + i, i, np.int16)) for i in range(first, first + count)]


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


def test_a_folder_whose_processes_have_ended_is_complete_without_the_other_shards(tmp_path):
    write_plan(tmp_path, Plan(sentences=9, shards=3, digest="x"))
    speech = Speech(tmp_path)
    write_shard(tmp_path, 0, utterances(0, 3))
    end(tmp_path, (1, 2))
    assert not speech.refresh()
    write_shard(tmp_path, 2, utterances(3, 2))
    end(tmp_path, (2, 2))
    assert speech.refresh() and speech.complete and speech.shards == (0, 2) and len(speech) == 5


def test_a_folder_belongs_to_one_plan(tmp_path):
    write_plan(tmp_path, Plan(7, 3, "x"))
    write_plan(tmp_path, Plan(7, 3, "x"))
    with pytest.raises(ValueError, match="was started with"):
        write_plan(tmp_path, Plan(7, 3, "y"))
