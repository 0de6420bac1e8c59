"""How the cuts of a rule compare with the marks of a text."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.burst import quantile
from benchmarks.segmentation.corpus import Text
from benchmarks.segmentation.rules import Rule


@dataclass(frozen=True, slots=True)
class Trial:
    """One rule on one text. `cuts` maps the offset of each cut to the code points that were fed when it came."""

    text: Text
    cuts: Mapping[int, int]

    @property
    def found(self) -> list[int]:
        """Required ends that were cut."""
        return [end for end in self.text.required if end in self.cuts]

    @property
    def missed(self) -> list[int]:
        return [end for end in self.text.required if end not in self.cuts]

    @property
    def wrong(self) -> list[int]:
        """Cuts at places without a mark."""
        return sorted(self.cuts.keys() - set(self.text.required) - set(self.text.optional))

    @property
    def lateness(self) -> list[int]:
        """For each required end that was cut: code points fed after the last visible character of its sentence."""
        return [self.cuts[end] - len(self.text.text[:end].rstrip()) for end in self.found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One rule on some texts. A ratio without a denominator, and the lateness of nothing, is None."""

    sentences: int
    ends: int  # required
    cuts: int
    precision: float | None  # cuts at a required or optional end, of all cuts
    recall: float | None  # required ends that were cut, of all required ends
    late_p50: float | None  # code points
    late_p90: float | None


def trial(text: Text, make: Callable[[str], Rule]) -> Trial:
    """Feed a text code point by code point to a new rule.

    Offsets are moved over white space to the beginning of the next sentence. Cuts at the end of the text do not count,
    and neither does what the rule would return if it were flushed.
    """
    rule, cuts = make(text.language), {}
    for fed, char in enumerate(text.text, 1):
        for piece in rule.feed(char):
            rest = text.text[piece.end :].lstrip()
            if rest:
                cuts.setdefault(len(text.text) - len(rest), fed)
    return Trial(text, cuts)


def score(trials: Sequence[Trial]) -> Score:
    """Sums over trials of one rule."""
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
