"""The corpus of sentence ends, and the scores of rules."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from benchmarks.measuring.environment import ROOT
from benchmarks.segmentation import page
from benchmarks.segmentation.corpus import FILES, Text, load, parse
from benchmarks.segmentation.rules import RULES, Lookahead, Span
from benchmarks.segmentation.scoring import Trial, score, trial

LANGUAGES = {"en", "zh", "ja", "de", "fr", "es", "ru", "hi", "ar"}
SAMPLE = """\
# en: letter
Dear Dr. Lee,

|it rains. |Sure! ¦We stay.
---
# zh: 信
好的。|走吧！
"""


@dataclass
class At:
    """A rule that cuts at given offsets, `behind` code points later."""

    offsets: tuple[int, ...]
    behind: int = 0
    fed: int = 0

    def feed(self, text: str, /) -> list[Span]:
        self.fed += len(text)
        return [Span(0, offset) for offset in self.offsets if offset + self.behind == self.fed]


class Everywhere:
    fed = 0

    def feed(self, text: str, /) -> list[Span]:
        self.fed += len(text)
        return [Span(self.fed - 1, self.fed)]


def perfect(text: Text, behind: int = 0) -> Trial:
    return trial(text, lambda language: At(text.required, behind))


@pytest.mark.parametrize("name", FILES)
def test_every_text_is_a_passage_in_a_known_language(name):
    texts = load(name)
    assert {text.language for text in texts} == LANGUAGES
    for text in texts:
        assert 3 <= len(text.sentences) <= 12, text.text
        assert all(text.sentences), text.text
        assert list(text.required) == sorted(set(text.required)) and not set(text.required) & set(text.optional)


def test_the_corpus_is_large_enough():
    assert sum(len(text.sentences) for text in load("development")) >= 250
    held_out = load("held_out")
    assert sum(len(text.sentences) for text in held_out) >= 600
    ends = dict.fromkeys(LANGUAGES, 0)
    for text in held_out:
        ends[text.language] += len(text.required)
    assert min(ends.values()) >= 55, ends


def test_no_sentence_occurs_twice_in_the_files():
    every = [sentence for name in FILES for text in load(name) for sentence in text.sentences]
    assert len(every) == len(set(every)), sorted(one for one in set(every) if every.count(one) > 1)


@pytest.mark.parametrize("name", FILES)
def test_every_blank_line_has_a_mark(name):
    for text in load(name):
        at = -1
        while (at := text.text.find("\n\n", at + 1)) >= 0:
            assert at + 2 in text.required, text.text[at - 20 : at + 20]


def test_texts_are_parsed():
    letter, note = parse(SAMPLE)
    assert letter == Text(
        language="en",
        kind="letter",
        text="Dear Dr. Lee,\n\nit rains. Sure! We stay.",
        required=(15, 25),
        optional=(31,),
    )
    assert letter.sentences == ["Dear Dr. Lee,", "it rains.", "Sure! We stay."]
    assert (note.language, note.text, note.required) == ("zh", "好的。走吧！", (3,))


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("Hello.\n", 1),
        ("# en: a\n", 1),
        ("# en: a\nOne. |Two.\n---\n# en: b\nOne. |\nTwo.\n", 5),
        ("# en: a\nOne.\nTw|o.\n", 3),
        ("# hi: a\nयह है|यह था।\n", 2),  # after a vowel sign
        ("# en: a\n|One. Two.\n", 2),
        ("# en: a\nOne. |¦Two.\n", 2),
        ("# en: a\nOne.|\n", 2),
    ],
)
def test_a_misplaced_mark_is_an_error(source, line):
    with pytest.raises(ValueError, match=rf"^line {line}: "):
        parse(source)


def test_a_perfect_rule_has_perfect_scores_and_its_own_lateness():
    trials = [perfect(text, behind=1) for text in parse(SAMPLE)]
    found = score(trials)
    assert (found.sentences, found.ends, found.cuts) == (5, 3, 3)
    assert found.precision == found.recall == 1
    assert [one.lateness for one in trials] == [[3, 2], [1]]  # white space counts
    assert (found.late_p50, found.late_p90) == (2, 3)


@pytest.mark.parametrize("name", FILES)
def test_a_perfect_rule_has_perfect_scores_on_the_corpus(name):
    found = score([perfect(text) for text in load(name)])
    assert found.precision == found.recall == 1 and found.cuts == found.ends


def test_a_rule_that_cuts_everywhere_finds_all_and_is_imprecise():
    found = score([trial(text, lambda language: Everywhere()) for text in load("held_out")])
    assert found.recall == 1
    assert found.precision and found.precision < 0.05
    assert found.late_p90 == 0


def test_wrong_and_missed_cuts_lower_precision_and_recall():
    letter, _ = parse(SAMPLE)
    one = trial(
        letter, lambda language: At((8, 24, 31, len(letter.text)))
    )  # after Dr., before a space, acceptable, end
    assert (one.found, one.missed, one.wrong) == ([25], [15], [9])
    found = score([one])
    assert found.cuts == 3  # the end of the text does not count
    assert found.precision == pytest.approx(2 / 3) and found.recall == pytest.approx(1 / 2)


def test_a_rule_without_cuts_has_no_precision():
    found = score([trial(text, lambda language: At(())) for text in parse(SAMPLE)])
    assert (found.precision, found.recall, found.late_p50, found.late_p90) == (None, 0, None, None)
    assert page.cells(found) == ["-", "0.000", "-", "-"]


def test_the_baseline_waits_for_two_sentences_or_one_after_a_cjk_terminator():
    (text,) = parse("# en: a\nIt rains. |We stay here. |He goes out. |Then he comes back.\n")
    one = trial(text, lambda language: Lookahead())
    assert one.found == list(text.required[:2]) and not one.wrong
    assert one.cuts[text.required[0]] > text.required[1]
    (text,) = parse("# zh: a\n下雨了。|我们不出去。|他来了。\n")
    one = trial(text, lambda language: Lookahead())
    assert one.found == list(text.required) and one.lateness == [1, 1]


def test_errors_show_their_context():
    letter, _ = parse(SAMPLE)
    lines = page.errors("none", trial(letter, lambda language: At((8,))))
    assert lines == [
        "none wrong en, letter: Dear Dr. ⟂Lee,↵↵it rains. Sure! We ",
        "none missed en, letter: Dear Dr. Lee,↵↵⟂it rains. Sure! We stay.",
        "none missed en, letter: Dear Dr. Lee,↵↵it rains. ⟂Sure! We stay.",
    ]


def test_the_command_writes_a_table_of_both_rules(tmp_path):
    table, markdown = tmp_path / "table.json", tmp_path / "page.md"
    words = ["--file", "development", "--errors", "--json", str(table), "--page", str(markdown)]
    command = [sys.executable, "-m", "benchmarks.segmentation", *words]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300).stdout
    content = json.loads(table.read_text())
    assert content["command"].startswith("python -m benchmarks.segmentation --file development")
    assert content["rules"].keys() == RULES.keys()
    for rows in content["rules"].values():
        assert rows.keys() == LANGUAGES | {"all"}
        assert rows["all"]["ends"] == sum(len(text.required) for text in load("development"))
    grid = printed[printed.index("| language |") :].strip()
    assert grid in markdown.read_text() and "⟂" in printed
