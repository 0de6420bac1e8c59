"""Texts of the other languages that VoxCPM2 claims, each with what a reader would say."""

from __future__ import annotations

from pathlib import Path

import pytest

from voxcpm_server.text.normalize.identification import language_of
from voxcpm_server.text.normalize.number_rules import LANGUAGES
from voxcpm_server.text.normalize.readings import normalized

TABLE = [
    (language if language != "-" else "", source, readings.split("|"))
    for language, source, readings in (
        line.split("\t")
        for line in Path(__file__).with_name("readings_of_languages.tsv").read_text("utf-8").splitlines()
    )
]
DIGITS_STAY = ("ar", "fi", "he", "lo", "my", "pl", "ru", "sw", "tl")


def test_the_table_has_every_language_that_is_not_english_or_chinese():
    languages = {language for language, *_ in TABLE}
    assert languages >= {*LANGUAGES, *DIGITS_STAY, ""}
    assert len(TABLE) >= 80
    assert len({(language, source) for language, source, _ in TABLE}) == len(TABLE)


@pytest.mark.parametrize(("language", "source", "readings"), TABLE, ids=[f"{row[0]} {row[1]}" for row in TABLE])
def test_a_reader_of_the_language_would_say_this(language: str, source: str, readings: list[str]):
    found = normalized(source, language)
    assert found in readings, found
    assert normalized(found, language) == found, "words stay as they are"


def test_a_text_of_a_language_that_is_given_is_never_english():
    found = {language_of(source, language) for language, source, _ in TABLE if language not in ("", "en", "zh")}
    assert not found & {"en", "zh"}


def test_nearly_all_texts_are_told_from_english_without_their_language():
    foreign = [source for language, source, _ in TABLE if language in LANGUAGES or language in DIGITS_STAY]
    taken = [source for source in foreign if language_of(source) == "en" and source.partition(" ")[0] != "Windows"]
    assert len(taken) <= len(foreign) // 10, taken


PHONEMES = ("{HH AH0 L OW1}", "{ni3}{hao3}", "{lv4}", "{nü3}")


@pytest.mark.parametrize("language", ["", "en", "zh", *LANGUAGES, "ru"])
@pytest.mark.parametrize("phonemes", PHONEMES)
def test_phonemes_pass_untouched(language: str, phonemes: str):
    for before, after in (("Say ", " to 3 cats."), ("我说", "三次。"), ("", " 3"), ("3 ", "")):
        found = normalized(before + phonemes + after, language)
        assert phonemes in found
        assert found.startswith(before[:1] if before[:1] != "3" else "")
    assert normalized(phonemes, language) == phonemes


def test_the_words_around_phonemes_are_read():
    assert normalized("I said {HH AH0 L OW1} to 3 cats.") == "I said {HH AH0 L OW1} to three cats."
    assert normalized("他说{ni3}{hao3}，来了2024年。") == "他说{ni3}{hao3}，来了二零二四年。"
    assert normalized("Ich sage {HH AH0} 3 Katzen.", "de") == "Ich sage {HH AH0} drei Katzen."
