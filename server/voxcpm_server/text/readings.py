"""Normalised text: the rules of the language of each text, around what no language reads."""

from __future__ import annotations

import re
from collections.abc import Callable

from voxcpm_server.text import chinese, english
from voxcpm_server.text.identification import language_of
from voxcpm_server.text.markup import without_emoji, without_markup
from voxcpm_server.text.numerals import numbers_in_words

PHONEMES = re.compile(r"(\{[A-Za-z][A-Za-z0-9ü ]{,99}\})")  # such as {HH AH0 L OW1} and {ni3}, which models may know
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'"})


def normalized(text: str, language: str = "") -> str:
    """The text as a reader says it. Blocks for some milliseconds, and loads the libraries at the first call.

    language: a primary tag, or empty for the language of the script; see `identification.language_of`
    """
    plain = " ".join(without_emoji(without_markup(text)).translate(_QUOTES).split())
    parts = PHONEMES.split(plain)
    language = language_of("".join(parts[::2]), language)
    parts[::2] = [_between_spaces(part, lambda text: _in_words(text, language)) for part in parts[::2]]
    return "".join(parts)


def _between_spaces(text: str, read: Callable[[str], str]) -> str:
    """The text as read, except for the spaces at its ends."""
    bare = text.strip()
    before, _, after = text.partition(bare) if bare else (text, "", "")
    return before + (read(bare) if bare else "") + after


def _in_words(text: str, language: str) -> str:
    if language == "zh":
        return chinese.read(text)
    if language == "en":
        return english.read(text)
    return numbers_in_words(text, language) if language else text
