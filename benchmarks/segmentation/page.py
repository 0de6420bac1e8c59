"""Scores of all rules, as a table and as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.pages.markdown import grid, listed
from benchmarks.segmentation.scoring import Score, Trial, score

CONTEXT = 25  # code points on each side of an error
COLUMNS = ("precision", "recall", "late p50", "late p90")
Scores = Mapping[str, Mapping[str, Score]]  # by rule and language


def scores(trials: Sequence[Trial]) -> dict[str, Score]:
    """The score of each language, in the order of the file, and of "all"."""
    languages = dict.fromkeys(one.text.language for one in trials)
    found = {language: score([one for one in trials if one.text.language == language]) for language in languages}
    return found | {"all": score(trials)}


def table(found: Scores) -> str:
    """A table with a row for each language, and the columns of each rule."""
    heads = ["language", "sentences", "ends", *(f"{rule}: {column}" for rule in found for column in COLUMNS)]
    first = next(iter(found.values()))
    lines = [
        [
            language,
            str(row.sentences),
            str(row.ends),
            *(cell for rule in found.values() for cell in cells(rule[language])),
        ]
        for language, row in first.items()
    ]
    return grid("|".join(heads), lines)


def cells(row: Score) -> list[str]:
    """The cells of COLUMNS."""
    shares = ["-" if share is None else f"{share:.3f}" for share in (row.precision, row.recall)]
    return shares + ["-" if late is None else f"{late:g}" for late in (row.late_p50, row.late_p90)]


def errors(rule: str, one: Trial) -> list[str]:
    """A line for each wrong and missed cut, with its context."""
    kinds = dict.fromkeys(one.wrong, "wrong") | dict.fromkeys(one.missed, "missed")
    text = one.text.text
    return [
        f"{rule} {kinds[at]} {one.text.language}, {one.text.kind}: "
        + f"{text[max(0, at - CONTEXT) : at]}⟂{text[at : at + CONTEXT]}".replace("\n", "↵")
        for at in sorted(kinds)
    ]


def render(conditions: Mapping[str, object], found: Scores, packages: Mapping[str, str]) -> str:
    """The page."""
    return f"""# Sentence ends while text arrives

`{conditions["command"]}` fed the texts of `{conditions["file"]}.txt` to each rule, code point by code point.

{table(found)}

Precision is the share of cuts that are at a required or acceptable sentence end. Recall is the share of required ends
that are cut before the text ends. Late is the number of code points from the last visible character of a sentence to
the one with which the rule returns its segment, over the required ends that are cut. `segmenter` is the server's rule.
`lookahead` takes a sentence of `sentencex` (English rules) when two more have begun after it, or one if it ends with a
CJK terminator.

{listed(packages)}
"""
