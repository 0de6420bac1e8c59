"""Phonemes within a text, in braces. Nobody reads them as words, and no cut falls inside them."""

from __future__ import annotations

from collections.abc import Iterator

import regex

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
