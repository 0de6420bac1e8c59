"""Scores of a rule: its cuts, compared with the marks of the texts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.measuring.statistics import quantile
from benchmarks.segmentation.corpus import Text
from benchmarks.segmentation.rules import Rule


@dataclass(frozen=True, slots=True)
class Trial:
    """One rule on one text. `cuts` maps the offset of each cut to the number of code points fed until then."""

    text: Text
    cuts: Mapping[int, int]

    @classmethod
    def of(cls, text: Text, ends: Iterable[tuple[int, int]]) -> Trial:
        """The trial of the ends of segments, each with the number of code points fed until then.

        Ends are moved over white space to the first character of the next sentence. Those at the end of the text do not
        count.
        """
        cuts: dict[int, int] = {}
        for end, fed in ends:
            if rest := text.text[end:].lstrip():
                cuts.setdefault(len(text.text) - len(rest), fed)
        return cls(text, cuts)

    @property
    def found(self) -> list[int]:
        """The required ends that were cut."""
        return [end for end in self.text.required if end in self.cuts]

    @property
    def missed(self) -> list[int]:
        """The required ends that were not cut."""
        return [end for end in self.text.required if end not in self.cuts]

    @property
    def wrong(self) -> list[int]:
        """The cuts without a mark."""
        return sorted(self.cuts.keys() - set(self.text.required) - set(self.text.optional))

    @property
    def lateness(self) -> list[int]:
        """The code points fed after the last visible character of the sentence, for each required end that was cut."""
        return [self.cuts[end] - len(self.text.text[:end].rstrip()) for end in self.found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One rule on some texts. A ratio whose denominator is 0 is None, and so is the lateness if nothing was cut."""

    sentences: int
    ends: int  # required
    cuts: int
    precision: float | None  # cuts at a required or optional end, of all cuts
    recall: float | None  # required ends that were cut, of all required ends
    late_p50: float | None  # code points
    late_p90: float | None

    @property
    def f1(self) -> float | None:
        """The harmonic mean of precision and recall; 0 if no required end was cut, None if there is none."""
        if self.recall is None or not self.precision:
            return self.recall
        return 2 * self.precision * self.recall / (self.precision + self.recall)


def trial(text: Text, make: Callable[[str], Rule]) -> Trial:
    """Feed a text to a new rule, code point by code point. The rule is not flushed."""
    rule = make(text.language)
    fed = ((segment.end, at) for at, char in enumerate(text.text, 1) for segment in rule.feed(char))
    return Trial.of(text, fed)


def score(trials: Sequence[Trial]) -> Score:
    """The score of one rule over all its trials."""
    ends = sum(len(one.text.required) for one in trials)
    cuts = sum(len(one.cuts) for one in trials)
    found = sum(len(one.found) for one in trials)
    wrong = sum(len(one.wrong) for one in trials)
    late = sorted(lateness for one in trials for lateness in one.lateness)
    return Score(
        sentences=ends + len(trials),
        ends=ends,
        cuts=cuts,
        precision=(cuts - wrong) / cuts if cuts else None,
        recall=found / ends if ends else None,
        late_p50=statistics.median(late) if late else None,
        late_p90=quantile(late, 0.9) if late else None,
    )
