"""Rules that read parts of a text, applied in one pass over the text as it was written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Match = re.Match[str]
START = r"(?:(?<!\w)|(?<=\d[xX]))(?<!\d[.,])"  # a number starts here, also the second of 10x20
END = r"(?!\w)(?![.,]\d)"  # a number ends here
NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"
LOOK_BACK = 60  # characters
DASH = r"[-\u2010-\u2014\u2212]"


def listed(words: str) -> tuple[str, ...]:
    """The words of a string, in their order."""
    return tuple(words.split())


_NOT_A_NOUN = listed(
    "a above ago an and apart are at away be because before below but by can costs deep did do each every extra "
    "for from had has have high if in into is it later less long more of off on or over own per since so tall "
    "than that the then thick to under until up was were when which who wide will with would"
)
_ARTICLE = re.compile(r"\b(?:an?|another|my|our|that|the|this|your)\s$", re.IGNORECASE)
_EACH = re.compile(r"-an?-[a-z]")
_NOUN = re.compile(r"(?:\s|-)([a-z]{2,})\b")


@dataclass(frozen=True)
class Rule:
    """A pattern, and its reading in words; None leaves the place to other rules."""

    pattern: re.Pattern[str]
    reading: Callable[[Match], str | None]


class _Found(NamedTuple):
    start: int
    order: int
    end: int
    words: str


def rule(pattern: str, reading: Callable[[Match], str | None] | str, flags: re.RegexFlag = re.NOFLAG) -> Rule:
    """A rule with its pattern compiled. A reading that is a string is the same for each match."""
    return Rule(re.compile(pattern, flags), reading if callable(reading) else lambda _: reading)


def one_of(words: Iterable[str]) -> str:
    """A group for any of the words, longest first."""
    return f"(?:{'|'.join(re.escape(word) for word in sorted(words, key=len, reverse=True))})"


def applied(rules: Sequence[Rule], text: str) -> str:
    """The text with each match in words. Words do not join those beside them, and are not searched again."""
    pieces: list[str] = []
    position = 0
    found = {order: one for order in range(len(rules)) if (one := _search(rules, order, text, 0))}
    while found:
        first = min(found.values())
        pieces += [text[position : first.start], first.words]
        position = first.end
        for order, one in list(found.items()):
            if one.start < position:
                if again := _search(rules, order, text, position):
                    found[order] = again
                else:
                    del found[order]
    return _joined([*pieces, text[position:]])


def text_before(match: Match) -> str:
    """The characters before a match that may decide on its words."""
    return match.string[max(match.start() - LOOK_BACK, 0) : match.start()]


def modifies(match: Match) -> bool:
    """True if a quantity stands before the noun that it measures: "a $5 bill", "a 10 km run", "$5-a-day"."""
    if _EACH.match(match.string, match.end()):
        return True
    noun = _NOUN.match(match.string, match.end())
    return bool(noun and noun[1] not in _NOT_A_NOUN and _ARTICLE.search(text_before(match)))


def _search(rules: Sequence[Rule], order: int, text: str, position: int) -> _Found | None:
    pattern, reading = rules[order].pattern, rules[order].reading
    while match := pattern.search(text, position):
        words = reading(match)
        if words is not None:
            return _Found(match.start(), order, match.end(), words)
        position = match.start() + 1
    return None


def _joined(pieces: Sequence[str]) -> str:
    text = ""
    for piece in pieces:
        if text and piece and _would_join(text[-1], piece[0]):
            text += " "
        text += piece
    return text


def _would_join(left: str, right: str) -> bool:
    return (left.isalnum() and (right.isalnum() or right in "([")) or (left in ")]}" and right.isalnum())
