"""English text as a reader says it: numbers, dates, money, units, addresses, abbreviations and symbols in words.

The rules of each module read one kind of thing. Where rules match at the same place, the first of `RULES` is taken.
"""

from __future__ import annotations

from voxcpm_server.text.english import addresses, amounts, codes, dates, money, names, symbols, times, units
from voxcpm_server.text.english.rules import Rule, applied

RULES: tuple[Rule, ...] = (
    *addresses.RULES,
    *codes.FIGURES,
    *dates.RULES,
    *times.RULES,
    *money.RULES,
    *units.RULES,
    *names.RULES,
    *amounts.RULES,
    *codes.RULES,
    *amounts.PLAIN,
    *symbols.RULES,
)


PASSES = 4  # passes at most; nearly all texts need one, and a second that changes nothing


def read(text: str) -> str:
    """The text in words. Its second reading changes nothing: the rules are applied until no more of them match."""
    for _ in range(PASSES):
        before, text = text, " ".join(applied(RULES, text).split())
        if text == before:
            break
    return text
