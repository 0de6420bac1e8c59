"""Normalised text: the rules of the language of each text, around phonemes and emoji, which no language reads."""

from __future__ import annotations

from collections.abc import Iterator

import regex

from voxcpm_server.text import chinese, english
from voxcpm_server.text.normalize.identification import language_of
from voxcpm_server.text.normalize.numerals import numbers_in_words


def without_emoji(text: str) -> str:
    """The text without emoji, and without what joins them."""
    import regex

    return regex.sub(r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F)[\p{EMod}\u200D\uFE0F]*", "", text)


_PHONEMES = regex.compile(r"\{[\p{L}\p{M}\d: ]{1,200}\}")
_OPEN = regex.compile(r"\{[\p{L}\p{M}\d: ]{0,200}$")


def around_phonemes(text: str) -> Iterator[tuple[str, bool]]:
    """The parts of a text in order, each with True if it is phonemes."""
    done = 0
    for found in _PHONEMES.finditer(text):
        yield text[done : found.start()], False
        yield found[0], True
        done = found.end()
    yield text[done:], False


def open_phonemes(text: str) -> int:
    """The start of phonemes whose end has not come; the length of the text if there are none."""
    begun = _OPEN.search(text)
    return len(text) if begun is None else begun.start()


def is_in_phonemes(text: str, at: int) -> bool:
    """True if a place of a text is inside phonemes, also if their end has not come yet."""
    if "{" not in text[:at]:
        return False
    return open_phonemes(text) < at or any(found.start() < at < found.end() for found in _PHONEMES.finditer(text))


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
