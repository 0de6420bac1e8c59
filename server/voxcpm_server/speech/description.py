"""The description in parentheses at the start of a text, with which VoxCPM2 lets a text steer the voice."""

from __future__ import annotations

import unicodedata

MAX_DESCRIPTION = 200  # characters that a text without the closing parenthesis is held together


def description_end(text: str) -> int | None:
    """The length of the description that a text begins with; 0 without one, None while its end has not come."""
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
    """The text without the parentheses of descriptions at its start, so that it is read and does not steer."""
    while (at := next((at for at, char in enumerate(text) if char.isalnum() or _plain(char) == "("), None)) is not None:
        if _plain(text[at]) != "(":
            break
        closing = _closing(text, at)
        text = f"{text[:at]} {text[at + 1 : closing]} {text[closing + 1 :]}"
    return " ".join(text.split())


def _closing(text: str, opening: int) -> int:
    """The place of the parenthesis that closes another one; the end of the text if there is none."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(_plain(text[at]), 0)
        if not depth:
            return at
    return len(text)


def _plain(char: str) -> str:
    """The character in the form of ASCII if it has one, such as ( for a full-width parenthesis."""
    return char if char.isascii() else unicodedata.normalize("NFKC", char)
