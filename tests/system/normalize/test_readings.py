"""Inputs with what a reader would say, beside the official package's code.

The rules were written in view of `readings.tsv`. `readings_by_others.tsv` was written at the same time by another hand,
which did not know the rules, and the hand that wrote the rules did not know it.
"""

from __future__ import annotations

import importlib.util
import re
import time
from pathlib import Path
from typing import Any

import pytest

from voxcpm_server.text.markup.remover import MarkupRemover
from voxcpm_server.text.normalize.readings import language_of
from voxcpm_server.text.normalize.readings import normalized as read

TABLE = [
    (source, readings.split("|"))
    for source, readings in (
        line.split("\t") for line in Path(__file__).with_name("readings.tsv").read_text("utf-8").splitlines()
    )
]
CHINESE = re.compile("[\u2e80-\uffef]")
BY_OTHERS = [
    (language, source, readings.split("|"))
    for language, source, readings in (
        line.split("\t") for line in Path(__file__).with_name("readings_by_others.tsv").read_text("utf-8").splitlines()
    )
]
READ_OTHERWISE = {
    "The answer was no. 5 people had asked.": "without a capital behind the full stop, `no. 5` is a number",
    "Yes or no. 2 minutes left.": "as above",
    "Cooking 101 starts today.": "one hundred and one",
    "Pi ≈ 3.14, roughly.": "Pi about ...",
    "It needs a score > 80.": "a score is greater than eighty",
    "Step 2: Preheat for 10 mins.": "the row takes the full stop for that of the abbreviation",
    "GPT-4很聪明。": "GPT四, without a space",
    "他说：“I have 2 cats。”": "the language is given as Chinese, so the number is",
}
OFFICIAL_AT_LEAST = 400  # of the table, 518 with wetext 0.1.8


def normalized(text: str, language: str = "") -> str:
    """The text as the server reads it: without markup, and then normalised."""
    remover = MarkupRemover()
    return read("".join(piece.text for piece in remover.feed(text) + remover.let_go()), language)


def agrees(text: str, readings: list[str]) -> bool:
    return " ".join(text.split()) in readings


def official() -> Any:
    """The normaliser of the official package, loaded from its file, because its package needs much more."""
    package = importlib.util.find_spec("voxcpm")
    assert package is not None and package.submodule_search_locations is not None
    file = Path(package.submodule_search_locations[0]) / "utils/text_normalize.py"
    spec = importlib.util.spec_from_file_location("official_text_normalize", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TextNormalizer()


def test_the_table_has_both_languages():
    languages = [language_of(source) for source, _ in TABLE]
    assert len(TABLE) >= 200
    assert min(languages.count("en"), languages.count("zh")) >= 70
    assert len({source for source, _ in TABLE}) == len(TABLE)


@pytest.mark.parametrize(("source", "readings"), TABLE, ids=[source for source, _ in TABLE])
def test_a_reader_would_say_this(source: str, readings: list[str]):
    language = "zh" if CHINESE.search(source) else "en"
    found = normalized(source, language)
    assert agrees(found, readings), found
    assert normalized(found, language) == found, "words stay as they are"


def test_nearly_all_english_is_told_without_its_language():
    english = [source for source, _ in TABLE if not CHINESE.search(source)]
    assert len(english) > 900
    assert len([source for source in english if language_of(source) != "en"]) <= 10


@pytest.mark.parametrize(("language", "source", "readings"), BY_OTHERS, ids=[source for _, source, _ in BY_OTHERS])
def test_another_reader_would_say_this(language: str, source: str, readings: list[str]):
    found = normalized(source, language if language != "-" else "")
    assert agrees(found, readings) != (source in READ_OTHERWISE), found


def test_what_the_official_package_reads_well_is_read_as_well_here():
    reads = official().normalize
    good = 0
    for source, readings in TABLE:
        try:
            good += agrees(reads(source), readings)
        except AssertionError:  # of wetext, for some inputs
            continue
    print(f"the official package reads {good} of {len(TABLE)}")
    assert OFFICIAL_AT_LEAST <= good <= len(TABLE)


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("2 + 3", "zh", "二加三"),
        ("2 + 3", "en", "two plus three"),
        ("Am 3. Mai kostet es 5 €.", "de", "Am dritten Mai kostet es fünf Euro."),
        ("**Am** 3. Mai 👍", "de", "Am dritten Mai"),
        ("3つのリンゴ", "", "三つのリンゴ"),
        ("3つのリンゴ", "en", "三つのリンゴ"),
        ("사과 3개", "", "사과 3개"),
        ("他有3本book。", "en", "他有三本book。"),
        ("```\ncode\n```", "", ""),
        ("", "", ""),
    ],
)
def test_the_script_and_the_language_choose_the_rules(text: str, language: str, expected: str):
    assert normalized(text, language).replace(" ", "") == expected.replace(" ", "")


@pytest.mark.parametrize(
    "text", ["#", "#1 #2", '"', "\\", "$", "1e-5", "ﷺ 1", "[[", "{1}", "1" * 100, "五" * 400, "\u202e1"]
)
def test_odd_text_is_never_an_error(text: str):
    assert isinstance(normalized(text), str)


def seconds(text: str) -> float:
    """The time of this process, whatever others do on its cores."""
    found = []
    for _ in range(3):
        began = time.process_time()
        normalized(text)
        found.append(time.process_time() - began)
    return min(found)


@pytest.mark.parametrize("text", ["12 345 ", "1一", "1:", "Dr. $5 ", "("])
def test_the_time_grows_with_the_length_alone(text: str):
    short, long = (text * 1600)[:400], (text * 1600)[:3200]
    assert seconds(long) < 16 * max(seconds(short), 0.005)
