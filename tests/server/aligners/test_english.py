"""The bundled aligner of English: the sounds of written words, and speech that is not that of the text."""

from __future__ import annotations

import numpy as np
import pytest

from voxcpm_server.aligners.english.aligner import EnglishAligner
from voxcpm_server.aligners.english.numbers import cardinal, ordinal, readings
from voxcpm_server.aligners.english.pronunciations import Pronunciations

ENTRIES = {
    "the": "DH AH",
    "the(2)": "DH IY",
    "doctor": "D AA K T ER",
    "one": "W AH N",
    "two": "T UW",
    "forty": "F AO R T IY",
    "dollars": "D AA L ER Z",
    "percent": "P ER S EH N T",
    "point": "P OY N T",
    "five": "F AY V",
    "first": "F ER S T",
    "home": "HH OW M",
    "brew": "B R UW",
    "walk": "W AO K",
    "oh": "OW",
    "four": "F AO R",
    "don't": "D OW N T",
    "twenty": "T W EH N T IY",
    "six": "S IH K S",
    "zero": "Z IH R OW",
    "thousand": "TH AW Z AH N D",
    "anna": "AE N AH",
    "g.": "JH IY",
    "p.": "P IY",
    "u.": "Y UW",
    "and": "AH N D",
    "cafe": "K AH F EY",
    "st": "EH S T",
    "s.": "EH S",
    "t.": "T IY",
}
PHONES = frozenset(phone for phones in ENTRIES.values() for phone in phones.split())


@pytest.fixture(scope="module")
def aligner() -> EnglishAligner:
    return EnglishAligner()


@pytest.mark.parametrize(
    ("written", "sounds"),
    [
        ("The", ["DH AH", "DH IY"]),
        ("“don’t”,", ["D OW N T"]),
        ("Café!", ["K AH F EY"]),
        ("Dr.", ["D AA K T ER"]),
        ("42%", ["F AO R T IY T UW P ER S EH N T", "F AO R T UW P ER S EH N T"]),
        ("$5", ["F AY V D AA L ER Z"]),
        ("1st", ["F ER S T"]),
        ("St", ["EH S T"]),
        ("2.5", ["T UW P OY N T F AY V"]),
        ("GPU", ["JH IY P IY Y UW", "G P AH"]),
        ("Anna's", ["AE N AH Z"]),
        ("homebrew", ["HH OW M B R UW"]),
        ("walking", ["W AO K IH NG"]),
        ("&", ["AH N D"]),
        ("{W", ["W"]),
        ("AH0", ["AH"]),
        ("N}", ["N"]),
        ("—", []),
        ("...", []),
        ("你好", []),
        ("ı", []),  # a letter that equals one of ASCII but for its case
    ],
)
def test_a_written_word_has_the_sounds_of_its_readings(written, sounds):
    assert list(Pronunciations(ENTRIES, PHONES).of(written)) == sounds


def test_no_number_is_too_long():
    sounds = Pronunciations(ENTRIES, PHONES)
    assert sounds.of("2" * 5000 + "nd")[0].split()[:2] == ["T", "UW"]


def test_digits_have_the_readings_of_numbers_years_and_single_digits():
    found = [" ".join(words) for words in readings("1999")]
    assert found == [
        "one thousand nine hundred ninety nine",
        "nineteen ninety nine",
        "one nine nine nine",
        "one nine nine nine",
    ]
    assert "twenty oh six" in [" ".join(words) for words in readings("2006")]
    assert [" ".join(words) for words in readings("007")] == ["zero zero seven", "oh oh seven"]
    assert " ".join(cardinal(1_002_345)) == "one million two thousand three hundred forty five"
    assert [ordinal(cardinal(number))[-1] for number in (1, 2, 3, 12, 20, 34)] == [
        *("first", "second", "third", "twelfth", "twentieth", "fourth"),
    ]


@pytest.mark.parametrize("word", ["zindles", "Siobhan", "Kowalczyk", "xylqrstvz", "aaaaa", "O'Rourke's", "x" * 60])
def test_every_word_of_letters_has_sounds_that_the_model_knows(aligner, word):
    alignment = aligner.begin([word, "the"], "en")
    assert alignment is not None
    alignment.push(np.zeros(1600, np.float32))
    alignment.finish(complete=False)


def test_text_that_is_not_english_is_refused_unless_its_language_is_given(aligner):
    assert (
        aligner.begin(["Der", "schnelle", "braune", "Fuchs", "springt", "über", "zwei", "faule", "Hunde"], "") is None
    )
    assert aligner.begin(["你", "好"], "") is None
    assert aligner.begin(["—"], "en") is None
    for text in ("Good morning, Dr. Smith!", "Hello", "Zindles were found in the greenhouse of Kowalczyk."):
        assert aligner.begin(text.split(), "") is not None
    assert aligner.begin(["The", "quick", "brown", "fox", "jumps", "over", "two", "zindles"], "") is not None


@pytest.mark.parametrize("complete", [True, False])
def test_what_is_not_speech_gives_no_words_out_of_order_and_frees_its_decoder(aligner, complete):
    noise = np.random.default_rng(1).normal(0, 0.1, 16000).astype(np.float32)
    for samples in (np.zeros(16000, np.float32), noise, 100 * noise):
        alignment = aligner.begin(["Hello", "there", "my", "friends", "of", "the", "sea"], "en")
        assert alignment is not None
        found = [*alignment.push(samples), *alignment.finish(complete=complete)]
        numbers = [one.word for one in found]
        assert numbers == sorted(set(numbers))
        edges = [edge for one in found for edge in (one.begin, one.end)]
        assert edges == sorted(edges)
        assert all(0 <= edge <= 1.01 for edge in edges)


def test_speech_that_ends_at_once_has_no_words(aligner):
    alignment = aligner.begin(["Hello"], "en")
    assert alignment is not None
    assert list(alignment.finish(complete=False)) == []
