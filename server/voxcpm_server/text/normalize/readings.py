"""Normalised text: the rules of the language of each text, around phonemes and emoji, which no language reads."""

from __future__ import annotations

import regex

from voxcpm_server.text import chinese, english
from voxcpm_server.text.normalize.identification import language_of
from voxcpm_server.text.normalize.numerals import numbers_in_words
from voxcpm_server.text.normalize.phonemes import around_phonemes


def without_emoji(text: str) -> str:
    """The text without emoji, and without what joins them."""
    return regex.sub(r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F)[\p{EMod}\u200D\uFE0F]*", "", text)


_APOSTROPHES = str.maketrans("‘’", "''")


def normalized(text: str, language: str = "") -> str:
    """The text as a reader says it. Blocks for some milliseconds, and loads the libraries at the first call.

    language: a primary tag, or empty for the language of the script; see `identification.language_of`
    """
    plain = " ".join(without_emoji(text).split())
    parts = list(around_phonemes(plain))
    language = language_of("".join(part for part, is_phonemes in parts if not is_phonemes), language)
    return "".join(part if is_phonemes else _in_words(part, language) for part, is_phonemes in parts)


def _in_words(text: str, language: str) -> str:
    """The text as read, with the spaces at its ends."""
    bare = text.strip()
    if not bare:
        return text
    before, _, after = text.partition(bare)
    return before + _read(bare, language) + after


def _read(text: str, language: str) -> str:
    if language == "zh":
        return chinese.read(text)
    if language == "en":
        return english.read(text.translate(_APOSTROPHES))
    return numbers_in_words(text, language) if language else text
