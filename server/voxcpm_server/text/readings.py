"""Normalised text: wetext, as in the official package, with rules for what it reads wrongly or cannot read."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from voxcpm_server.text import chinese, english
from voxcpm_server.text.identification import language_of
from voxcpm_server.text.markup import without_emoji, without_markup
from voxcpm_server.text.numerals import numbers_in_words

log = logging.getLogger(__name__)
PHONEMES = re.compile(r"(\{[A-Za-z][A-Za-z0-9ü ]{,99}\})")  # such as {HH AH0 L OW1} and {ni3}, which models may know
PIECE_CHARS = 80  # wetext takes more time for each character of a longer text
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_BETWEEN_WORDS = re.compile(r"(?<=[^\W\d_]{3})[,;:!?]? (?=[^\W\d_]{2})|[，。！？；：、](?!\d)")
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
        plain = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), text)
        return chinese.finished(_read("zh", chinese.prepared(plain)))
    if language == "en":
        return english.without_digits(_read("en", english.prepared(text, _words)), _inflect())
    return numbers_in_words(text, language) if language else text


def _read(language: str, text: str) -> str:
    return "".join(_between_spaces(piece, lambda text: _read_piece(language, text)) for piece in _pieces(text))


def _pieces(text: str) -> Iterator[str]:
    """The text in parts that wetext reads fast, cut between words, and not in a number or a date if possible."""
    while len(text) > PIECE_CHARS:
        places = [m.end() for m in _BETWEEN_WORDS.finditer(text, PIECE_CHARS // 2, PIECE_CHARS)]
        end = places[-1] if places else text.rfind(" ", 1, PIECE_CHARS) + 1 or PIECE_CHARS
        yield text[:end]
        text = text[end:]
    yield text


def _read_piece(language: str, text: str) -> str:
    """The text in the words of wetext, or as it is if wetext has no reading of it."""
    try:
        return str(_wetext(language).normalize(text)).replace('\\"', '"').replace("\\\\", "\\")
    except Exception as error:  # wetext fails by assertions and errors of its own, for example for "#1"
        log.debug("wetext did not read %d characters: %r", len(text), error)
        return text


@cache
def _wetext(language: str) -> Any:
    from wetext import Normalizer

    return Normalizer(lang=language, operator="tn", remove_erhua=language == "zh")


@cache
def _inflect() -> Any:
    import inflect

    return inflect.engine()


def _words(number: int) -> str:
    return str(_inflect().number_to_words(number)).replace("-", " ").replace(",", "")
