"""Finds the ends of sentences from the text before them and the first character behind them.

The library `sentencex` proposes ends by the rules of a language. With only one character behind the end it makes
mistakes, so the rules here reject an end before a word in lower case, after an abbreviation, an initial, an ordinal
number or an ellipsis, and inside a quotation.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import sentencex

from voxcpm_server.speech.characters import is_spaceless
from voxcpm_server.speech.lexicon import ABBREVIATIONS, ADDRESS_LEADS, BEFORE_NUMBERS, HOSTS, NEVER_HOSTS, ORDINARY

log = logging.getLogger(__name__)

LOOK_BACK = 400  # code points before an end that are passed to the library
TAIL = 80  # code points before an end in which its terminator, closing marks and white space must lie
EAGER_WORDS = 5  # fewest words of a clause that becomes a segment
AROUND_WORDS = ".,;:!?-–—()[]{}*_`\"'“”„‚‘’«»<>#$€£¥"
SPACELESS_WORD = 2  # characters that count as a word in scripts without spaces

_STOPS = "。！？｡．।॥۔؟"  # never inside a number, an abbreviation or an address
_MARKS = "\"'”’»)\\]}*_`」』】》〉〕｣›“"
_EMOJI = "\u2190-\u21ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff\ufe0f\u200d"
_END = re.compile(rf"(?P<run>[.!?…‼⁇⁈⁉{_STOPS}]+)(?P<closers>(?:\s*[{_MARKS}{_EMOJI}])*)\s*$")
_CLAUSE = re.compile(rf"(?P<mark>[,;:،؛–—、，；：])[{_MARKS}]*\s*$")
_INNER_CLAUSE = re.compile(r"[,;:،؛…–—](?=\s)|[、，；：—]")
_COLON = re.compile(rf"[:：][{_MARKS}]*\s*$")
_QUOTES = re.compile('["”’»」』›“]')
_LIST_MARKER = re.compile(r"(?:[-*+•‣◦–—]|\d{1,3}[.)]|[A-Za-z][.)]|#{1,6})[ \t]+")
_HEADING = re.compile(r"[ \t]*(?:#{1,6}[ \t].*|\*\*[^*]+\*\*:?|__[^_]+__:?)")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n$|\u2029$")
_WORD = re.compile(r"\S+")
_LAST_WORD = re.compile(r"\S+$")
_INNER_STOP = re.compile(r"\w\.\w")
_CLOSED_BY = {"“": "”", "„": "“”", "«": "»", "「": "」", "『": "』", "《": "》", "〈": "〉", "【": "】"}
# The library panics on white space of more than one byte behind initials.
_PLAIN = {c: "\n" if chr(c) in "\x85\u2028\u2029" else " " for c in range(128, 0x3001) if chr(c).isspace()}
_SCRIPTS = {
    "ru": re.compile("[\u0400-\u052f]"),
    "hi": re.compile("[\u0900-\u097f]"),
    "ar": re.compile("[\u0600-\u06ff\u0750-\u077f]"),
}
_LATIN = ("en", "de", "fr", "es")


class Ending(Enum):
    """The state of a text at its last character, if no more text follows."""

    COMPLETE = "complete"  # the sentence has ended
    DOUBTFUL = "doubtful"  # the last mark may or may not end the sentence
    OPEN = "open"  # the sentence has not ended


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The rules of one language, a primary subtag such as `de`; empty takes the rules of the script."""

    language: str = ""

    def before(self, text: str, following: str) -> int | None:
        """The length of the sentence in `text` if the character `following` makes its end certain, else None.

        `text` begins with the first character of a sentence. The sentence is all of `text`; if `following` begins the
        first word of a list item, it is the lines before that item.
        """
        if following.isspace():
            if _BLANK_LINE.search(text[-TAIL:] + following):
                return len(text)
            return len(text) if self._ends_spaceless(text, following) else None
        if not text or not text[-1].isspace():
            return len(text) if self._ends_spaceless(text, following) else None
        return self._before_word(text, following)

    def after_clause(self, text: str, following: str) -> bool:
        """True if `text` ends with a clause that is long enough for a segment."""
        clause = _CLAUSE.search(text[-TAIL:])
        if clause is None or following.isspace() or words(text) < EAGER_WORDS:
            return False
        return text[-1].isspace() or is_spaceless(clause["mark"])

    def ending(self, text: str) -> Ending:
        """The state of `text` after a pause."""
        end = _END.search(text[-TAIL:])
        if end is None:
            return Ending.DOUBTFUL if _CLAUSE.search(text[-TAIL:]) else Ending.OPEN
        body = text.rstrip()
        if _is_ellipsis(end["run"]) or _has_open_quotation(body):
            return Ending.DOUBTFUL
        if end["run"] == ".":
            word = _last_word(text, end)
            if word[-1:].isdigit() or self._vetoes_stop(text, end, "A"):
                return Ending.DOUBTFUL
            if text.endswith(".") and _may_be_address(text, word):
                return Ending.DOUBTFUL
        return Ending.COMPLETE

    def _before_word(self, text: str, following: str) -> int | None:
        body = text.rstrip()
        line = text.rfind("\n")
        if line >= 0 and _LIST_MARKER.fullmatch(text[line + 1 :].lstrip(" \t")):
            return line + 1
        newline = line >= len(body)
        if newline and _ends_line(body):
            return len(text)
        if _continues(following, dash=not newline):
            return None
        end = _END.search(body[-TAIL:])
        if end is None or _has_open_quotation(body):
            return None
        if not newline and _is_attributed(end, following):
            return None
        return len(text) if self._ends(body, end, following, newline=newline) else None

    def _ends(self, body: str, end: re.Match[str], following: str, *, newline: bool) -> bool:
        run = end["run"]
        if _is_ellipsis(run):
            return newline
        return run != "." or not self._vetoes_stop(body, end, following, newline=newline)

    def _vetoes_stop(self, text: str, end: re.Match[str], following: str, *, newline: bool = False) -> bool:
        """True if the full stop at the end of `text` may belong to its word."""
        word = _last_word(text, end)
        bare = word.casefold()
        languages = self._languages(word)
        if any(bare in ABBREVIATIONS.get(language, ()) for language in languages):
            return True
        if bare in BEFORE_NUMBERS and following.isdigit():
            return True
        if len(bare) == 1 and bare.isalpha() and not is_spaceless(bare):
            return True
        if bare.isdigit() and len(bare) <= 2:
            return not newline or text[text.rfind("\n") + 1 :].strip() == f"{word}."
        if _INNER_STOP.search(word):
            return not newline
        return bare not in ORDINARY and not _library_agrees(text, end, following, languages)

    def _ends_spaceless(self, text: str, following: str) -> bool:
        """True if `text` ends with a full stop of a script that needs no space behind it."""
        end = _END.search(text[-TAIL:])
        if end is None or text[-1:].isspace():
            return False
        run, closers = end["run"], end["closers"]
        if run[-1] not in _STOPS:
            before = text[: len(text) - len(run) - len(closers)][-1:]
            if run[-1] not in "!?" or not (is_spaceless(before) or is_spaceless(following)) or following.isspace():
                return False
        if _is_ellipsis(run) or (run == "．" and following.isdigit()):
            return False
        if following in f"{_STOPS}.!?…" or _closes(text, following) or _is_emoji(following):
            return False
        if _continues(following) or _has_open_quotation(text):
            return False
        return not _is_attributed(end, following)

    def _languages(self, word: str) -> tuple[str, ...]:
        if self.language:
            return (self.language,)
        for language, script in _SCRIPTS.items():
            if script.search(word):
                return (language,)
        return _LATIN


def clause_ends(text: str, start: int, stop: int) -> Iterator[int]:
    """Ends of clauses in text[start:stop], none of them inside a number."""
    for mark in _INNER_CLAUSE.finditer(text, start, stop):
        yield mark.end()


def words(text: str) -> int:
    """The number of words in `text`; scripts without spaces count by characters."""
    spaceless = sum(map(is_spaceless, text))
    others = sum(not is_spaceless(word[0]) for word in _WORD.findall(text))
    return others + spaceless // SPACELESS_WORD


def _is_ellipsis(run: str) -> bool:
    return run[-1] == "…" or run[-2:] in ("..", "。。", "．．")


def _is_emoji(char: str) -> bool:
    return re.fullmatch(f"[{_EMOJI}]", char) is not None


def _last_word(text: str, end: re.Match[str]) -> str:
    """The word before the run of terminators that ends `text`, without marks around it."""
    before = text[: len(text) - len(end[0])]
    word = _LAST_WORD.search(before[-TAIL:])
    return word[0].strip(AROUND_WORDS) if word else ""


def _ends_line(body: str) -> bool:
    """True if the last line of `body` ends with a colon or is a heading."""
    return _COLON.search(body[-TAIL:]) is not None or _HEADING.fullmatch(body[body.rfind("\n") + 1 :]) is not None


def _continues(following: str, *, dash: bool = True) -> bool:
    """True if a word or a mark that starts with `following` continues the sentence before it."""
    if following.isalnum():
        return following.islower()
    kind = unicodedata.category(following)
    if kind == "Pd":
        return dash
    return kind in ("Pe", "Pf") or following in ",;:.!?%/|\\、，；：。！？…»”’›" or _is_emoji(following)


def _closes(text: str, char: str) -> bool:
    """True if `char`, directly behind `text`, closes a quotation or a bracket."""
    if char in "\"'*_`":
        if text.endswith(char):
            return True
        runs = re.findall(re.escape(char) + "+", text)
        return len(runs) % 2 == 1
    if char == "“":  # closes German quotations and opens others
        return text.count("„") > text.count("“")
    return re.fullmatch(f"[{_MARKS}]", char) is not None


def _is_attributed(end: re.Match[str], following: str) -> bool:
    """True if a quotation has ended and its speaker may follow. Scripts without capitals do not show which."""
    if _QUOTES.search(end["closers"]) is None:
        return False
    return following.isspace() or (following.isalpha() and not following.isupper() and not following.istitle())


def _has_open_quotation(text: str) -> bool:
    """True if a quotation in CJK marks, curly quotes or guillemets is open at the end of `text`."""
    awaited: list[str] = []
    for char in text:
        if awaited and char in awaited[-1]:
            awaited.pop()
        elif char in _CLOSED_BY:
            awaited.append(_CLOSED_BY[char])
    return bool(awaited)


def _may_be_address(text: str, word: str) -> bool:
    """True if the full stop at the end of `text` may be inside an address or file name that `word` begins."""
    bare = word.casefold()
    if bare in HOSTS or re.search(r"[@/\\_]|\d|[a-z][A-Z]", word):
        return True
    if not word.isascii() or bare in NEVER_HOSTS:
        return False
    before = _WORD.findall(text[-TAIL:])[:-1]
    if not before:
        return word.islower()
    return before[-1].casefold().strip(AROUND_WORDS) in ADDRESS_LEADS


def _library_agrees(text: str, end: re.Match[str], following: str, languages: tuple[str, ...]) -> bool:
    """True if the library also ends a sentence behind the terminators at the end of `text`."""
    letter = following if following.isalnum() else "A"  # a letter, if an opening mark follows
    sentence = text[: len(text) - len(end[0]) + len(end["run"])][-LOOK_BACK:].translate(_PLAIN)
    return all(_sentences(language, f"{sentence} {letter}")[-1] == letter for language in languages)


def _sentences(language: str, text: str) -> list[str]:
    """The library's division of the text into sentences and paragraph breaks."""
    try:
        return sentencex.segment(language, text)  # pyright: ignore[reportAttributeAccessIssue]
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of a Rust library; it is not a subclass of Exception
            raise
        log.error("sentence segmentation failed on %d characters", len(text))
        return [text]
