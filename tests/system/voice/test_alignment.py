"""The letter that sounds at each moment follows from the words of a text and their phonemes."""

import numpy as np

from tools.voice.alignment import letters, places
from tools.voice.dataset import STEP


def spelled(text: str, phonemes: str) -> list[str]:
    """The letter of each phoneme."""
    return [text[int(place)] for place in places(text, phonemes)]


def test_the_words_of_a_text_and_of_its_phonemes_are_paired() -> None:
    found = spelled("a long cat", "ɐ lɔŋ kæt")
    assert found[0] == "a" and found[2:5] == ["l", "o", "n"] and found[6:] == ["c", "a", "t"]


def test_clauses_are_paired_where_words_are_not() -> None:
    text, phonemes = "At 42, we go.", "æt fɔːɾi tuː, wi ɡoʊ."
    places_of = places(text, phonemes)
    assert (np.diff(places_of) > 0).all()
    after = phonemes.index("wi")
    assert text[int(places_of[after])] == "w" and places_of[phonemes.index(",") - 1] < text.index(",")


def test_a_text_whose_clauses_differ_proceeds_in_proportion() -> None:
    text, phonemes = "3.5", "θɹiː pɔɪnt faɪv"
    assert places(text, phonemes)[0] == 0 and (np.diff(places(text, phonemes)) > 0).all()
    assert places(text, phonemes)[-1] < len(text)


def test_a_recording_has_the_letter_of_each_of_its_steps() -> None:
    text = phonemes = "abcd"
    ends = [STEP * end for end in (2, 3, 5, 9)]  # after a start of two steps, for which there is no phoneme
    assert letters(text, phonemes, ends, 0, 10 * STEP).tolist() == [0, 0, 1, 2, 2, 3, 3, 3, 3, 3]
    assert letters(text, phonemes, ends, 2 * STEP, 4 * STEP - 1).tolist() == [1, 2, 2, 3]
