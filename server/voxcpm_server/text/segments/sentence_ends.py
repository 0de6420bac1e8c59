"""Finds the ends of sentences from the text before them and the first character behind them.

The library `sentencex` proposes ends by the rules of a language. With only one character behind the end it makes
mistakes, so the rules here reject an end before a word in lower case, after an abbreviation, an initial, an ordinal
number or an ellipsis, and once inside a quotation. The marks are those of Unicode's tables.
"""

from __future__ import annotations

import logging
import string
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import regex
import sentencex

from voxcpm_server.text.language import LATIN, SCRIPTS, script
from voxcpm_server.text.segments.quotations import open_quotations
from voxcpm_server.text.segments.word_lists import (
    ABBREVIATIONS,
    ADDRESS_LEADS,
    BEFORE_NUMBERS,
    HOSTS,
    NEVER_HOSTS,
    ORDINALS,
    ORDINARY,
)
from voxcpm_server.text.words.characters import is_spaceless

log = logging.getLogger(__name__)

LOOK_BACK = 400  # code points before an end that are passed to the library
TAIL = 80  # code points before an end in which its terminator, closing marks and white space must lie
EAGER_WORDS = 5  # a clause of fewer words becomes no segment
AROUND_WORDS = ".,;:!?-–—()[]{}*_`\"'“”„‚‘’«»<>#$€£¥"
SPACELESS_WORD = 2  # characters that count as a word in scripts without spaces

LINE_COLUMNS = 40  # a shorter line was ended by its writer, not by the width of a page

# Burmese writes U+104A as a comma. Tibetan and Hebrew have ends of sentences that Unicode only calls terminal.
_ENDS = r"[[\p{Sentence_Terminal}--၊][\p{Terminal_Punctuation}&&[\p{Script=Tibetan}\p{Script=Thai}\p{Script=Hebrew}]]]"
_STOPS = rf"[{_ENDS}--[.!?․﹒‼⁇⁈⁉]]"  # they are never inside a number, an abbreviation or an address
_PAUSES = rf"[[\p{{Terminal_Punctuation}}--{_ENDS}]--፡]"  # they are between clauses; Ethiopic U+1361 is between words
_EMOJI = (
    r"[[\p{Extended_Pictographic}--\p{P}--[©®™]]\p{Emoji_Modifier}\p{Regional_Indicator}\ufe0f\u200d\u20e3"
    r"\p{Block=Arrows}\p{Block=Misc_Symbols}\p{Block=Dingbats}\p{Block=Misc_Arrows}]"
)
_MARKS = rf"[[\p{{Pe}}\p{{Pf}}\"'＂＇“«‹*_`]{_EMOJI}]"  # they close quotations, brackets and emphasis
_CLOSERS = rf"(?P<closers>(?:\s*[{_MARKS}--[«‹]]|[«‹])*)\s*"  # « behind a space opens a quotation


def _compile(pattern: str) -> regex.Pattern[str]:
    return regex.compile(pattern, regex.VERSION1)


def _compile_end(pattern: str) -> regex.Pattern[str]:
    """A pattern that `match` compares with the end of a text."""
    return regex.compile(pattern, regex.VERSION1 | regex.REVERSE)


_END = _compile_end(rf"(?P<run>(?:{_ENDS}|…)+){_CLOSERS}")
# These marks end sentences only in text of a script: Greek question marks, and stand-ins on keyboards without the mark.
_SCRIPT_ENDS = tuple(
    (language, _compile(rf"\p{{Script={name}}}{{2}}"), _compile_end(rf"(?P<run>(?:{_ENDS}|…|{marks})+){_CLOSERS}"))
    for language, name, marks in (("el", "Greek", "[;\u037e]"), ("hy", "Armenian", ":"), ("am", "Ethiopic", "፡፡|::"))
)
_STAND_INS = ";\u037e:፡"
_AROUND_ENDS = f"{string.whitespace}\"'”’»)]*_`"
_STOP = _compile(_STOPS)
_CLAUSE = _compile_end(rf"(?P<mark>{_PAUSES}|[–—])[{_MARKS}]*\s*")
_INNER_CLAUSE = _compile(rf"(?:{_PAUSES}|[…–—])(?=\s)|[{_PAUSES}&&[\p{{ea=W}}\p{{ea=F}}\p{{ea=H}}]]|—")
_COLON = _compile_end(rf"[:：៖][{_MARKS}]*\s*")
_QUOTES = _compile(r"[\p{Quotation_Mark}--['‘’‚‛]]")
_INNER_END = _compile(rf"(?P<run>(?:{_ENDS}|…)+)(?P<closers>[{_MARKS}]*)(?P<space>\s*)(?=(?P<following>\S))")
_LIST_MARKER = _compile(rf"(?:[-*+•‣◦–—]|\(?\p{{Nd}}{{1,3}}(?:[.)]|{_STOPS})|[A-Za-z][.)]|#{{1,6}})[ \t]+")
_ITEM_NUMBER = _compile(rf"\s*\p{{Nd}}{{1,3}}{_STOPS}")
_KHMER_ETC = "។ល។"
_HEADING = _compile(r"[ \t]*(?:#{1,6}[ \t].*|\*\*[^*]+\*\*:?|__[^_]+__:?)")
_CASED = _compile(r"\p{Cased}")
_CONTINUES = _compile(rf"[[{_PAUSES}{_ENDS}\p{{Pf}}]{_EMOJI}]")
_CLOSING = _compile(_MARKS)
_RUN = _compile(rf"{_ENDS}|…")
_EMOJI_CHAR = _compile(_EMOJI)
_BLANK_LINE = _compile_end(r"\n[^\S\n]*\n|\u2029")
_WORD = _compile(r"\S+")
_LAST_WORD = _compile(r"\S+$")
_INNER_STOP = _compile(r"\w\.-?\w")  # J.-P. has one, too
_DASH = _compile_end(r"(?<=\s)\p{Pd}\s+")
# The library panics on white space of more than one byte behind initials.
_PLAIN = {c: "\n" if chr(c) in "\x85\u2028\u2029" else " " for c in range(128, 0x3001) if chr(c).isspace()}
_LANGUAGES = {
    **{name: tuple(one for one in SCRIPTS if name in SCRIPTS[one]) for scripts in SCRIPTS.values() for name in scripts},
    LATIN: ("en", "de", "fr", "es", "und"),
    "CYRILLIC": ("ru",),
    "ARABIC": ("ar",),
    "DEVANAGARI": ("hi",),
}
"""The languages whose abbreviations apply to the words of a script if the language of the text is not known."""


@dataclass(frozen=True, slots=True)
class Boundaries:
    """The rules of one language, a primary subtag such as `de`; empty takes the rules of the script.

    lower_case: True if the turn has no capitals at the starts of its sentences so far, None if it has no such start
    marked: True if the turn has shown that it marks the ends of sentences in a script that may do without
    """

    language: str = ""
    lower_case: bool | None = None
    marked: bool = False

    def after(self, text: str) -> Boundaries:
        """The rules for the text behind a segment of the same turn."""
        marked = self.marked or (not text.isascii() and _STOP.search(text) is not None)
        lower = self._is_lower_case(text)
        return self if (marked, lower) == (self.marked, self.lower_case) else Boundaries(self.language, lower, marked)

    def before(self, text: str, following: str) -> int | None:
        """The length of the sentence in `text` if the character `following` makes its end certain, else None.

        `text` begins with the first character of a sentence. The sentence is all of `text`; if `following` begins the
        first word of a list item, it is the lines before that item.
        """
        if following.isspace():
            if following in "\n\u2029" and _BLANK_LINE.match(text[-TAIL:] + following):
                return len(text)
            return len(text) if self._ends_spaceless(text, following) else None
        if not text or not text[-1].isspace():
            return len(text) if self._ends_spaceless(text, following) else None
        return self._before_word(text, following)

    def after_clause(self, text: str, following: str) -> bool:
        """True if `text` ends with a clause that is long enough for a segment."""
        clause = _CLAUSE.match(text[-TAIL:])
        if clause is None or following.isspace() or words(text) < EAGER_WORDS:
            return False
        return text[-1].isspace() or is_spaceless(clause["mark"])

    def is_complete(self, text: str) -> bool:
        """True if `text` ends as a sentence ends, with no doubt that its last mark could belong to a word."""
        end = self._end(text[-TAIL:])
        if end is None or _is_ellipsis(end["run"]):
            return False
        if end["run"] != ".":
            return True
        word = _last_word(text, end)
        if word[-1:].isdigit() or self._vetoes_stop(text, end, "A"):
            return False
        return not (text.endswith(".") and _may_be_address(text, word))

    def _is_lower_case(self, text: str) -> bool | None:
        """`lower_case` with the start of a sentence that `text` begins with."""
        if self.lower_case is False or (first := _CASED.search(text)) is None:
            return self.lower_case
        return first[0].islower()

    def _end(self, text: str) -> regex.Match[str] | None:
        """The marks behind a sentence at the end of a short text."""
        if text.rstrip()[-1:].isalnum():  # nearly all texts end so, and this is faster than the search
            return None
        if not text.isascii() and text.rstrip(_AROUND_ENDS)[-1:] in _STAND_INS:
            for language, letters, end in _SCRIPT_ENDS:
                if self.language in ("", language) and letters.search(text):
                    return end.match(text)
        return _END.match(text)

    def _before_word(self, text: str, following: str) -> int | None:
        body = text.rstrip()
        line = text.rfind("\n")
        if line >= 0 and _LIST_MARKER.fullmatch(text[line + 1 :].lstrip(" \t")):
            return line + 1
        newline = line >= len(body)
        if newline and _ends_line(body):
            return len(text)
        # A word in lower case would continue the sentence.
        if not newline and following.isupper() and (dash := _DASH.match(text)):
            return self._before_word(text[: dash.start()], following)
        if self._continues(text, following, dash=not newline):
            return None
        end = self._end(body[-TAIL:])
        if end is None:
            # A number or a list item follows.
            if not newline or following.isdigit() or unicodedata.category(following) == "Pd":
                return None
            return len(text) if _is_short_line(body) else None
        if not newline and _may_lead_on(end["run"][-1]) and _is_attributed(end, following):
            return None
        if not self._ends(body, end, following, newline=newline) or self._is_held(body):
            return None
        return len(text)

    def _ends(self, body: str, end: regex.Match[str], following: str, *, newline: bool) -> bool:
        run = end["run"]
        if _is_ellipsis(run) or body.endswith(_KHMER_ETC):
            return newline
        if _is_item_number(body):
            return False
        return run != "." or not self._vetoes_stop(body, end, following, newline=newline)

    def _continues(self, text: str, following: str, *, dash: bool = True) -> bool:
        """True if a word or a mark that starts with `following` continues the sentence before it."""
        if following.isalnum():
            return following.islower() and not self._is_lower_case(text)
        kind = unicodedata.category(following)
        if kind == "Pd":
            return dash
        if kind == "Pf" and text[-1:].isspace():  # French has « x », other languages have ”x” and »x«
            return bool(open_quotations(text))
        return kind == "Pe" or following in "/|\\…%" or _CONTINUES.match(following) is not None

    def _is_held(self, text: str) -> bool:
        """True if an open quotation delays the end of a sentence. It delays one, so that a stray mark holds no turn."""
        opened = open_quotations(text)
        if not opened:
            return False
        for end in _INNER_END.finditer(text, opened[0]):
            following, space = end["following"], end["space"]
            if _STOP.match(end["run"][-1]) and not space:
                if not end["closers"]:
                    return False
            elif space and not self._continues(text, following):
                sentence = text[: end.end("closers")]
                marks = self._end(sentence[-TAIL:])
                if marks is not None and self._ends(sentence, marks, following, newline="\n" in space):
                    return False
        return True

    def _vetoes_stop(self, text: str, end: regex.Match[str], following: str, *, newline: bool = False) -> bool:
        """True if the full stop at the end of `text` may belong to its word."""
        if unicodedata.category(text[: len(text) - len(end[0])][-1:] or " ") == "Pe":  # "(see p. 4)." is an example
            return False
        word = _last_word(text, end)
        bare = word.casefold()
        languages = self._languages(word, text)
        if any(bare in ABBREVIATIONS.get(language, ()) for language in languages):
            return True
        if following.isdigit() and any(bare in BEFORE_NUMBERS.get(language, ()) for language in languages):
            return True
        if bare in ORDINARY:
            return False
        if len(bare) == 1 and bare.isalpha() and not is_spaceless(bare) and script(bare) != "HANGUL":
            return True
        if bare.isdigit() and len(bare) <= 2:
            begins_line = text[text.rfind("\n") + 1 :].strip() == f"{word}."
            return begins_line or (not newline and not ORDINALS.isdisjoint(languages))
        if _INNER_STOP.search(word):
            return not newline
        return not self._library_agrees(text, end, following, languages)

    def _ends_spaceless(self, text: str, following: str) -> bool:
        """True if `text` ends with a full stop of a script that needs no space behind it."""
        end = None if text[-1:].isspace() else self._end(text[-TAIL:])
        if end is None:
            return False
        run, closers = end["run"], end["closers"]
        if not _STOP.match(run[-1]):
            before = text[: len(text) - len(run) - len(closers)][-1:]
            if run[-1] not in "!?" or not (is_spaceless(before) or is_spaceless(following)) or following.isspace():
                return False
        if _is_ellipsis(run) or (run == "．" and following.isdigit()):
            return False
        if text.endswith(_KHMER_ETC) or (f"{text[-1]}{following}" == _KHMER_ETC[:2]):
            return False
        if _is_item_number(text):
            return False
        if not following.isalnum() and (_RUN.match(following) or _closes(text, following) or _is_emoji(following)):
            return False
        if self._continues(text, following) or _is_attributed(end, following):
            return False
        return not self._is_held(text)

    def _languages(self, word: str, text: str) -> tuple[str, ...]:
        """The languages whose abbreviations apply to the last word of a text; a number is of the words before it."""
        found = next(filter(None, map(script, f"{word}{text[: -TAIL - 1 : -1]}")), LATIN)
        if self.language and found in SCRIPTS.get(self.language, (LATIN,)):
            return (self.language,)
        if self.language and found == LATIN:  # it is a foreign word
            return ("en",)
        return _LANGUAGES.get(found, ())

    def _library_agrees(self, text: str, end: regex.Match[str], following: str, languages: tuple[str, ...]) -> bool:
        """True if the library also ends a sentence behind the terminators at the end of `text`.

        It adds the abbreviations of English to those of other languages, which are not theirs.
        """
        letter = following if following.isalnum() and not following.islower() else "A"
        sentence = text[: len(text) - len(end[0]) + len(end["run"])][-LOOK_BACK:].translate(_PLAIN)

        @cache
        def ends(language: str) -> bool:
            return _sentences(language, f"{sentence} {letter}")[-1] == letter

        return all(ends(one) or (one != "en" and not ends("en")) for one in languages if one != "und")


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


def _is_item_number(text: str) -> bool:
    """True if the last line of a text is no more than a number and a full stop of a script that needs no space."""
    return text[-2:-1].isdigit() and _ITEM_NUMBER.fullmatch(text, text.rfind("\n") + 1) is not None


def _is_emoji(char: str) -> bool:
    return _EMOJI_CHAR.match(char) is not None


def _last_word(text: str, end: regex.Match[str]) -> str:
    """The word before the run of terminators that ends `text`, without marks around it."""
    before = text[: len(text) - len(end[0])]
    word = _LAST_WORD.search(before[-TAIL:])
    return word[0].strip(AROUND_WORDS) if word else ""


def _ends_line(body: str) -> bool:
    """True if the last line of `body` ends with a colon or is a heading."""
    return _COLON.match(body[-TAIL:]) is not None or _HEADING.fullmatch(body[body.rfind("\n") + 1 :]) is not None


def _is_short_line(body: str) -> bool:
    """True if the last line of `body` is too short for a line of wrapped text, and ends in a word."""
    line = body[body.rfind("\n") + 1 :]
    columns = sum(2 if is_spaceless(char) else 1 for char in line)
    return columns < LINE_COLUMNS and _CLAUSE.match(line) is None


def _closes(text: str, char: str) -> bool:
    """True if `char`, directly behind `text`, closes a quotation or a bracket."""
    if char in "\"'*_`":
        if text.endswith(char) or not any(map(is_spaceless, text[-TAIL:])):  # an opening mark has a space before it
            return True
        runs = regex.findall(regex.escape(char) + "+", text)
        return len(runs) % 2 == 1
    if char in "“«‹":  # they close „x“ and »x«, and open others
        return len(open_quotations(text + char)) < len(open_quotations(text))
    return _CLOSING.match(char) is not None


def _may_lead_on(mark: str) -> bool:
    """True for marks behind which a sentence may go on: "Why?" he asked. A full stop becomes a comma there."""
    return any(word in unicodedata.name(mark, "") for word in ("QUESTION", "EXCLAMATION", "ELLIPSIS"))


def _is_attributed(end: regex.Match[str], following: str) -> bool:
    """True if a quotation has ended and its speaker may follow. Scripts without capitals do not show which."""
    if not end["closers"] or _QUOTES.search(end["closers"]) is None:
        return False
    return following.isspace() or (following.isalpha() and not following.isupper() and not following.istitle())


def _may_be_address(text: str, word: str) -> bool:
    """True if the full stop at the end of `text` may be inside an address or file name that `word` begins."""
    bare = word.casefold()
    if bare in HOSTS or regex.search(r"[@/\\_]|\d|[a-z][A-Z]", word):
        return True
    if not word.isascii() or bare in NEVER_HOSTS:
        return False
    before = _WORD.findall(text[-TAIL:])[:-1]
    return bool(before) and before[-1].casefold().strip(AROUND_WORDS) in ADDRESS_LEADS


def _sentences(language: str, text: str) -> list[str]:
    """The library's division of the text into sentences and paragraph breaks."""
    try:
        return sentencex.segment(language, text)  # pyright: ignore[reportAttributeAccessIssue]
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # a Rust library raises it; it is not a subclass of Exception
            raise
        log.error("sentence segmentation failed on %d characters", len(text))
        return [text]
