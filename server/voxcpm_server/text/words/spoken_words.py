"""The words of a text, where they end without spaces, and their share of the time in which it is spoken."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from itertools import pairwise

import regex

from voxcpm_server.text.words.characters import is_joined, is_spaceless

LETTER_SECONDS = 0.07  # seconds of speech, until a stream has segments to measure
DIGIT = 4.0  # letters of its name
SYLLABLE = 3.0  # letters of a Chinese character or a Korean syllable
KANA = 2.0
WORD = 0.5  # letters for each word after the first, because short words take more time than their letters
NAMED_MARKS = "&%@#+=$€£¥§°"  # readers say the names of these marks
INNER_MARKS = ",.，．٫٬"  # numbers have these marks
# Thai and Lao write these vowels before their consonant.
PREVOWELS = "\u0e40\u0e41\u0e42\u0e43\u0e44\u0ec0\u0ec1\u0ec2\u0ec3\u0ec4"


def weight(text: str) -> float:
    """The length of the speech of a text, in letters."""
    return sum(weights(text))


def weights(text: str) -> Iterator[float]:
    """The length of the speech of each character, in letters; that of a word counts for its first one."""
    words = spaced = False
    for char in text:
        if char.isspace():
            spaced = words
            yield 0.0
        else:
            yield _weight(char) + (WORD if spaced else 0.0)
            words, spaced = True, False


def word_ends(text: str) -> Iterator[int]:
    """The ends of the words of a text, in order. Punctuation belongs to the word before it.

    In scripts that put no spaces between words each visible character counts as a word.
    """
    begun = False
    for at in range(1, len(text) + 1):
        begun = begun or not text[at - 1].isspace()
        if begun and (at == len(text) or text[at].isspace() or _splits(text, at)):
            yield at
            begun = False


def words_of(text: str) -> list[str]:
    """The words of a text, with their marks."""
    return [text[start:end].strip() for start, end in pairwise((0, *word_ends(text)))]


def _splits(text: str, at: int) -> bool:
    """True if a word of a script without spaces ends inside visible text."""
    before, after = text[at - 1], text[at]
    if after.isdecimal() and text[:at].rstrip(INNER_MARKS)[-1:].isdecimal():
        return False  # the mark is inside a number
    if not (is_unspaced(before) or is_unspaced(after)) or not (after.isalnum() or _opens(after)):
        return False
    return not (before.isspace() or before in PREVOWELS or _opens(before) or is_joined(text, at))


def _opens(char: str) -> bool:
    return unicodedata.category(char) in ("Ps", "Pi")


def is_unspaced(char: str) -> bool:
    """True for scripts without spaces between words: CJK, Thai, Lao, Tibetan, Burmese and Khmer."""
    return is_spaceless(char) or "\u0e00" <= char <= "\u109f" or "\u1780" <= char <= "\u17ff"


@lru_cache(maxsize=8192)
def _weight(char: str) -> float:
    if not char.isalnum():
        return 0.0 if unicodedata.category(char) in ("Mn", "Me", "Cc", "Cf", "Cs") else 1.0
    if char.isdecimal():
        return DIGIT
    if "\u3040" <= char <= "\u30ff":
        return KANA
    return SYLLABLE if is_spaceless(char) or "\uac00" <= char <= "\ud7a3" else 1.0


def is_pronounced(word: str) -> bool:
    """True for a word that is more than marks."""
    return any(char.isalnum() or char in NAMED_MARKS for char in word)


_BEYOND_BMP = regex.compile(r"[\U00010000-\U0010ffff]")


def word_breaks(text: str) -> list[int]:
    """The places in a text at which a word begins.

    With the extra `words`, they are those of the dictionaries of ICU. Without it, each syllable or visible character
    of Thai, Chinese and the like counts as a word.
    """
    return [at for at in _breaker()(text) if 0 < at < len(text) and text[at].isalnum()]


@cache
def _breaker() -> Callable[[str], Iterable[int]]:
    try:
        from icu4py.breakers import WordBreaker
    except ImportError:
        return word_ends

    def breaks(text: str) -> Iterable[int]:
        plain = _BEYOND_BMP.sub("\ufffd", text)  # its positions are those of UTF-16
        return (start for start, _ in WordBreaker(plain, "").segments())

    return breaks
