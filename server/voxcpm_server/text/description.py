"""The description in parentheses at the start of a text, which steers the voice with models that take a style."""

from __future__ import annotations

import unicodedata
from itertools import takewhile

MAX_DESCRIPTION = 200  # characters that a text without the closing parenthesis is held together


def description_end(text: str) -> int | None:
    """The length of the description that a text begins with; 0 without one, None while its end has not come."""
    if text.isascii() and "(" not in text:
        return 0
    start = next((at for at, char in enumerate(text) if char.isalnum() or _plain(char) == "("), len(text))
    if start == len(text) or _plain(text[start]) != "(":
        return 0
    depth = 0
    for at in range(start, min(len(text), start + MAX_DESCRIPTION)):
        depth += {"(": 1, ")": -1}.get(_plain(text[at]), 0)
        if not depth:
            return at + 1
    return None if len(text) < start + MAX_DESCRIPTION else 0


def without_parentheses(text: str) -> str:
    """The text without the parentheses of a description at its start, so that it is read and does not steer."""
    if "(" not in map(_plain, takewhile(lambda char: not char.isalnum(), text)):
        return text
    kept: list[str] = []
    left_out: list[bool] = []  # each parenthesis that is open has an entry
    read = False
    for at, char in enumerate(text):
        read = read or char.isalnum()
        plain = _plain(char)
        if plain == "(":
            left_out.append(not read)
        if plain in "()" and (left_out[-1] if left_out else plain == ")" and not read):
            following = text[at + 1 : at + 2]
            kept.append(" " if plain == ")" and (following.isalnum() or _plain(following) == "(") else "")
        else:
            kept.append(char)
        if plain == ")" and left_out:
            left_out.pop()
    return " ".join("".join(kept).split())


def _plain(char: str) -> str:
    """The character in the form of ASCII if it has one, such as ( for a full-width parenthesis."""
    return char if char.isascii() else unicodedata.normalize("NFKC", char)
