"""The marked texts of each language, their arrival in virtual time, and the command's table by language."""

import json
import subprocess
import sys

import pytest

from benchmarks.measuring.environment import ROOT
from benchmarks.segmentation.arrival import INTERVAL, PAUSE, arrive, pieces
from benchmarks.segmentation.by_language import LanguageRow, delays_table, ends_table, language_row, render
from benchmarks.segmentation.corpus import LANGUAGES, load_language, parse
from benchmarks.segmentation.rules import Span, segmenter
from voxcpm_grpc.checkpoint import LANGUAGES as CLAIMED

(LETTER,) = parse("# en: letter\nWe stay here. |It rains a lot.\n\n|Come back!\n")
MAX_WAIT = 0.25  # of the server


class Held:
    """A rule that cuts only at pauses, `wait` seconds after the last text, or at the flush."""

    def __init__(self, wait: float | None) -> None:
        self.wait, self.fed, self.cut = wait, 0, 0

    @property
    def max_wait(self) -> float | None:
        return self.wait if self.cut < self.fed else None

    def feed(self, text: str, /) -> list[Span]:
        self.fed += len(text)
        return []

    def pause(self) -> list[Span]:
        start, self.cut = self.cut, self.fed
        return [Span(start, self.fed)]

    flush = pause


class Early(Held):
    """A rule that cuts at the full stop of the last sentence, and never again."""

    def __init__(self) -> None:
        super().__init__(None)

    def feed(self, text: str, /) -> list[Span]:
        self.fed += len(text)
        return [Span(0, self.fed)] if text == " back." else []

    def flush(self) -> list[Span]:
        return []


def seconds(*values: float):
    return pytest.approx(list(values))


def row(source: str) -> LanguageRow:
    return language_row(parse(source))


def test_every_language_that_the_models_claim_has_texts():
    assert set(LANGUAGES) == set(CLAIMED["openbmb/VoxCPM2"])


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_has_sixty_sentences_of_many_kinds(language):
    texts = load_language(language)
    sentences = [sentence for text in texts for sentence in text.sentences]
    assert {text.language for text in texts} == {language}
    assert len(sentences) >= 60 and all(sentences) and len({text.kind for text in texts}) >= 5
    assert len(sentences) == len(set(sentences)), sorted(one for one in set(sentences) if sentences.count(one) > 1)
    for text in texts:
        assert list(text.required) == sorted(set(text.required)) and not set(text.required) & set(text.optional)
        assert "".join(pieces(text.text, language)) == text.text


def test_words_arrive_with_the_white_space_before_them():
    assert list(pieces("One two.\n\nThree", "en")) == ["One", " two.", "\n\nThree"]


def test_scripts_without_spaces_arrive_in_visible_characters():
    assert list(pieces("你好。 我", "zh")) == ["你", "好", "。", " 我"]
    assert list(pieces("ที่นี่ ครับ", "th")) == ["ที่", "นี่", " ค", "รั", "บ"]


def test_a_sentence_is_held_until_the_next_word():
    arrival = arrive(LETTER, segmenter("en"))
    assert arrival.complete == seconds(2 * INTERVAL, 6 * INTERVAL, 8 * INTERVAL)
    assert arrival.held == seconds(INTERVAL, INTERVAL, MAX_WAIT)
    assert arrival.first == pytest.approx(INTERVAL)


def test_a_sentence_of_a_dialogue_is_held_until_the_pause():
    arrival = arrive(LETTER, segmenter("en"), dialogue=True)
    assert arrival.complete[:2] == seconds(2 * INTERVAL, 2 * INTERVAL + PAUSE + 3 * INTERVAL)
    assert arrival.held == seconds(MAX_WAIT, MAX_WAIT, MAX_WAIT)
    assert arrival.trial.found == list(LETTER.required)


def test_a_rule_that_never_cuts_holds_everything_until_the_flush():
    arrival = arrive(LETTER, Held(None))
    assert arrival.held == seconds(PAUSE + 6 * INTERVAL, PAUSE + 2 * INTERVAL, PAUSE)
    assert arrival.first == pytest.approx(PAUSE + 6 * INTERVAL)
    assert not arrival.trial.found and not arrival.trial.wrong


def test_a_pause_is_counted_from_the_last_word():
    assert arrive(LETTER, Held(INTERVAL / 2)).held == seconds(*[INTERVAL / 2] * 3)
    assert arrive(LETTER, Held(2 * PAUSE), dialogue=True).held == seconds(
        3 * PAUSE + 4 * INTERVAL, 2 * PAUSE + INTERVAL, PAUSE
    )


def test_a_sentence_that_cannot_be_spoken_is_not_held():
    (text,) = parse("# en: chat\nWe stay here. |😄\n")
    assert len(arrive(text, segmenter("en")).held) == 1
    (text,) = parse("# en: chat\nWe stay here. |Come back. ¦😄\n")
    assert arrive(text, Early()).held == seconds(2 * INTERVAL, 0)


def test_a_cut_before_the_first_end_is_no_delay():
    (text,) = parse("# en: letter\nWell, ¦we stay. |It rains.\n")
    assert arrive(text, Held(0)).first == 0


def test_the_language_is_told_in_one_of_the_outcomes():
    english = row("# en: note\nThe sign says bzw. |We do not know it. |Good.\n")  # the German word for "or"
    assert english.told.score.recall == 1
    german = row("# de: note\nWir essen Brot bzw. Kuchen. |Gut.\n")
    assert german.told.score.precision == german.told.score.recall == 1


def test_scores_have_their_harmonic_mean():
    perfect = row("# en: letter\nWe stay here. |It rains a lot. |Come back!\n").streamed
    assert perfect.score.f1 == 1
    assert perfect.held.maximum == pytest.approx(MAX_WAIT) and perfect.held.median == pytest.approx(INTERVAL)
    half = row("# en: letter\nwe stay here |it rains a lot. |Come back!\n").streamed.score
    assert (half.precision, half.recall) == (1, 0.5)
    assert half.f1 == pytest.approx(2 / 3)


def test_the_page_gives_a_reason_for_each_low_score():
    rows = {"en": row("# en: letter\nwe stay here |it rains a lot |come back\n")}
    written = render("python -m benchmarks.segmentation", rows, {})
    assert "* en: " in written
    assert ends_table(rows) in written and delays_table(rows) in written
    assert "F1 is at least" in render("", {"en": row("# en: letter\nWe stay. |Come back!\n")}, {})


def test_the_command_writes_a_table_by_language(tmp_path):
    table, markdown = tmp_path / "table.json", tmp_path / "page.md"
    words = ["--languages", "th,ru", "--errors", "--json", str(table), "--page", str(markdown)]
    command = [sys.executable, "-m", "benchmarks.segmentation", *words]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300).stdout
    rows = json.loads(table.read_text())["languages"]
    assert rows.keys() == {"th", "ru"}
    assert rows["ru"]["streamed"]["score"]["sentences"] >= 60
    assert rows["ru"]["dialogue"]["f1"] >= rows["ru"]["streamed"]["f1"] > 0.5
    assert rows["th"]["told"]["held"]["maximum"] >= rows["th"]["told"]["held"]["median"]
    assert "⟂" in printed and "| ru |" in markdown.read_text()


def test_a_language_without_texts_is_refused():
    command = [sys.executable, "-m", "benchmarks.segmentation", "--languages", "ru,xx"]
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert refused.returncode == 2 and "no texts for xx" in refused.stderr
