"""Texts of requests. No two share a prefix, so that no text finds another one in a prefix cache."""

from __future__ import annotations

SENTENCE = "the quick brown fox jumps over the lazy dog while seven wizards quietly mix a box of toxic jelly "


def text(serial: int, chars: int) -> str:
    """A text of `chars` characters: its serial number, and words that are the same in all texts."""
    return (f"{serial:06d} " + SENTENCE * (chars // len(SENTENCE) + 1))[:chars]
