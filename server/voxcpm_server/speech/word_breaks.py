"""The places between the words of a text whose script has no spaces between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import regex

from voxcpm_server.speech.spoken_words import word_ends

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
