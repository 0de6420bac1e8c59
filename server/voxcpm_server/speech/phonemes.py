"""Phonemes in braces, such as {HH AH0 L OW1} or {ni3}{hao3}, which the models read as they are."""

from __future__ import annotations

from collections.abc import Iterator

import regex

_PHONEMES = regex.compile(r"\{[\p{L}\p{M}\d: ]{1,200}\}")
_OPEN = regex.compile(r"\{[\p{L}\p{M}\d: ]{0,200}$")


def phonemes(text: str) -> Iterator[tuple[int, int]]:
    """The ranges of a text that are phonemes."""
    for found in _PHONEMES.finditer(text):
        yield found.span()


def is_in_phonemes(text: str, at: int) -> bool:
    """True if a place of a text is inside phonemes, also if their end has not come yet."""
    if "{" not in text[:at]:
        return False
    begun = _OPEN.search(text)
    return any(start < at < end for start, end in phonemes(text)) or (begun is not None and begun.start() < at)
