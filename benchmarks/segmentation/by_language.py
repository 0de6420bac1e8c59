"""Scores and delays of the server's rule for each language that the released models claim."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.measuring.statistics import quantile
from benchmarks.pages.markdown import grid, listed
from benchmarks.segmentation.arrival import INTERVAL, PAUSE, Arrival, arrive
from benchmarks.segmentation.corpus import Text
from benchmarks.segmentation.rules import segmenter, told
from benchmarks.segmentation.scoring import Score, score

GOAL = 0.9  # F1, for every language
REASONS: Mapping[str, str] = {}  # by language: the cause of an F1 below GOAL, a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds."""

    median: float
    p95: float
    maximum: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> Times:
        ordered = sorted(seconds)
        return cls(median=statistics.median(ordered), p95=quantile(ordered, 0.95), maximum=ordered[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The server's rule on the texts of one language.

    held: from the last character of each sentence to the cut of its segment
    first: from the end of the first sentence of each text to the first cut
    """

    score: Score
    held: Times
    first: Times

    @classmethod
    def of(cls, arrivals: Sequence[Arrival]) -> Outcome:
        return cls(
            score=score([one.trial for one in arrivals]),
            held=Times.of(seconds for one in arrivals for seconds in one.held),
            first=Times.of(one.first for one in arrivals),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageRow:
    """The outcomes of one language.

    streamed: texts arrive without pauses, and their language is not told
    dialogue: the same, with a pause after each sentence
    told: texts arrive without pauses, and their language is told
    """

    streamed: Outcome
    dialogue: Outcome
    told: Outcome

    def content(self) -> dict[str, Any]:
        """The values, for JSON."""
        return {
            name: {**asdict(outcome), "f1": outcome.score.f1}
            for name, outcome in (("streamed", self.streamed), ("dialogue", self.dialogue), ("told", self.told))
        }


def streams(texts: Iterable[Text]) -> list[Arrival]:
    """The arrivals of texts without pauses, whose language is not told."""
    return [arrive(text, segmenter(text.language)) for text in texts]


def language_row(texts: Sequence[Text]) -> LanguageRow:
    return LanguageRow(
        streamed=Outcome.of(streams(texts)),
        dialogue=Outcome.of([arrive(text, segmenter(text.language), dialogue=True) for text in texts]),
        told=Outcome.of([arrive(text, told(text.language)) for text in texts]),
    )


def ends_table(rows: Mapping[str, LanguageRow]) -> str:
    heads = "language|sentences|precision|recall|F1|told: precision|told: recall|told: F1|dialogue: F1"
    lines = [
        [
            language,
            str(row.streamed.score.sentences),
            *(share for outcome in (row.streamed, row.told) for share in shares(outcome.score)),
            shares(row.dialogue.score)[-1],
        ]
        for language, row in rows.items()
    ]
    return grid(heads, lines)


def delays_table(rows: Mapping[str, LanguageRow]) -> str:
    columns = ("first p50", "first max", "held p50", "held p95", "held max")
    heads = ["language", *(f"{kind}{column}" for kind in ("", "dialogue: ") for column in columns)]
    lines = [
        [language, *(cell for outcome in (row.streamed, row.dialogue) for cell in _delays(outcome))]
        for language, row in rows.items()
    ]
    return grid("|".join(heads), lines)


def shares(row: Score) -> list[str]:
    """Precision, recall and F1, as cells."""
    return ["-" if share is None else f"{share:.3f}" for share in (row.precision, row.recall, row.f1)]


def _delays(outcome: Outcome) -> list[str]:
    first, held = outcome.first, outcome.held
    return [f"{seconds:.2f}" for seconds in (first.median, first.maximum, held.median, held.p95, held.maximum)]


def _below_goal(rows: Mapping[str, LanguageRow]) -> str:
    """A line for each language whose F1 is below GOAL, with the reason."""
    below = [language for language, row in rows.items() if (row.streamed.score.f1 or 0) < GOAL]
    if not below:
        return f"F1 is at least {GOAL} for every language."
    lines = "\n".join(f"* {language}: {REASONS.get(language, 'the cause is not known.')}" for language in below)
    return f"F1 is below {GOAL} for these languages:\n\n{lines}"


def render(command: str, rows: Mapping[str, LanguageRow], packages: Mapping[str, str]) -> str:
    """The page."""
    return f"""# Sentence ends in thirty languages

`{command}` let the texts of [these files](../segmentation/languages/) arrive at the server's rule, one word each
{INTERVAL * 1000:.0f} ms, or one visible character in scripts without spaces between words. Nothing waits in real time.

{ends_table(rows)}

Precision is the share of cuts that are at a required or acceptable sentence end. Recall is the share of required ends
that are cut before the text ends. In a column with `told`, `Segmentation.language` names the language. In a column with
`dialogue`, the text pauses for {PAUSE:g} s after each sentence, and the cuts that the pauses cause count, too.

{_below_goal(rows)}

{delays_table(rows)}

Delays are seconds. `held` is the time from the arrival of the last character of a sentence to the cut of the segment
that contains it. `first` is the time from the end of the first sentence of a text to the first cut; 0 means that the
cut was at or before that end. Each text ends with a pause of {PAUSE:g} s and a flush, so {PAUSE:g} s or more means that
the pause did not cut the sentence.

{listed(packages)}
"""
