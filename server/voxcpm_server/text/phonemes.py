"""Phonemes in braces, such as {HH AH0 L OW1} or {ni3}{hao3}, which the models read as they are."""

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


def is_in_phonemes(text: str, at: int) -> bool:
    """True if a place of a text is inside phonemes, also if their end has not come yet."""
    if "{" not in text[:at]:
        return False
    begun = _OPEN.search(text)
    return any(found.start() < at < found.end() for found in _PHONEMES.finditer(text)) or (
        begun is not None and begun.start() < at
    )
