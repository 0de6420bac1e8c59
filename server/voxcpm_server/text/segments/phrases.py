"""Text of scripts that put no spaces between words: the ends of its phrases, and the time that it takes to speak.

Thai and Lao have no marks for the ends of sentences, and spaces stand between phrases. Chinese, Japanese, Khmer and
Burmese have marks, but in messages they are often left out.
"""

from __future__ import annotations

import unicodedata

import regex

from voxcpm_server.text.normalize.phonemes import is_in_phonemes
from voxcpm_server.text.words.spoken_words import LETTER_SECONDS, SYLLABLE, is_unspaced, weight, word_breaks

LONGEST_SECONDS = 8.0  # seconds of speech without a mark, in one segment
SHORTEST_LONG = int(LONGEST_SECONDS / LETTER_SECONDS / SYLLABLE)  # code points that may take as long
PHRASE_SECONDS = 1.0  # seconds of the shortest phrase of Thai or Lao that becomes a segment
UNMARKED_PHRASE_SECONDS = 2.5  # seconds likewise, where the marks of the script may still come
SETTLED = 12  # characters behind a place between words after which more text does not move it
_MARKED_SCRIPTS = regex.compile(r"(?V1)[\p{L}--[\p{Script=Thai}\p{Script=Lao}\p{Script=Latin}]]")
_IN_BRACKETS = regex.compile(r"[(（][^)）]*$")
_MARK = regex.compile(r"(?V1)[\p{Terminal_Punctuation}--[.:]]")


def is_mostly_unspaced(text: str) -> bool:
    """True if half of the letters or more are of scripts without spaces between words."""
    letters = [is_unspaced(char) for char in text if char.isalpha()]
    return bool(letters) and 2 * sum(letters) >= len(letters)


def ends_phrase(text: str, following: str, *, marked: bool) -> bool:
    """True if the space at the end of a text ends a phrase that is long enough for a segment.

    marked: True if the turn has shown that it marks the ends of sentences
    """
    if following.isascii() and following.isalnum():
        return False
    body = text.rstrip()
    if not _continues_script(body[-1:]) or not _begins_phrase(following) or not is_mostly_unspaced(body):
        return False
    if _IN_BRACKETS.search(body):
        return False
    if not _may_have_marks(body):
        return seconds(body) >= PHRASE_SECONDS
    return not marked and _MARK.search(body) is None and seconds(body) >= UNMARKED_PHRASE_SECONDS


def longest_end(text: str, *, marked: bool) -> int | None:
    """The place to cut a text without marks that takes longer than LONGEST_SECONDS; None if it does not."""
    last = text[-1]
    if last.isascii() or not is_unspaced(last) or len(text) * weight(last) * LETTER_SECONDS < LONGEST_SECONDS:
        return None
    if _may_have_marks(text) and (marked or _MARK.search(text)):
        return None
    if not is_mostly_unspaced(text) or seconds(text) < LONGEST_SECONDS:
        return None
    spaces = (at + 1 for at in range(len(text) // 4, len(text) - 1) if text[at].isspace())
    words = (at for at in word_breaks(text) if at <= len(text) - SETTLED)
    for places in (spaces, words):
        if outside := [at for at in places if not is_in_phonemes(text, at)]:
            return outside[-1]
    return None


def seconds(text: str) -> float:
    """The estimated time in which a text is spoken."""
    return weight(text) * LETTER_SECONDS


def _may_have_marks(text: str) -> bool:
    return _MARKED_SCRIPTS.search(text) is not None


def _continues_script(char: str) -> bool:
    kind = unicodedata.category(char or " ")
    return kind in ("Pe", "Pf") or (is_unspaced(char) and kind != "Lm")  # a sign of repetition is inside a phrase


def _begins_phrase(char: str) -> bool:
    kind = unicodedata.category(char)
    if kind in ("Ps", "Pi"):
        return True
    return is_unspaced(char) and kind not in ("Lm", "Nd") and kind[0] != "M"
