"""Quotations and brackets that are open at a place of a text, in the styles of all languages."""

from __future__ import annotations

import unicodedata

import regex

# Single quotation marks are also apostrophes, and parentheses hold remarks, so neither hold a sentence together.
_MARK = regex.compile(r"(?V1)[[\p{Quotation_Mark}--['‘’‚‛＇]][[\p{Ps}\p{Pe}]&&\p{ea=W}]]")
_LOW_OR_TURNED = "„»”›"  # opening marks that are closed by “ or «


def open_quotations(text: str) -> list[int]:
    """The places of the marks that open the quotations in which the end of the text lies, the outermost first.

    A mark of any style closes a quotation. A straight quotation mark opens none, because nothing tells it from a stray
    one.
    """
    opened: list[int] = []
    if text.isascii():
        return opened
    for found in _MARK.finditer(text):
        at, mark = found.start(), found[0]
        if _opens(text, at, mark, text[opened[-1]] if opened else ""):
            opened.append(at)
        elif opened and unicodedata.category(mark) != "Ps":
            opened.pop()
    return opened


def _opens(text: str, at: int, mark: str, awaiting: str) -> bool:
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    begins_word = not before or before.isspace() or unicodedata.category(before) in ("Pd", "Ps")
    match unicodedata.category(mark):
        case "Ps":
            return True
        case "Pi":  # “ and « close „x“ and »x«
            return begins_word or not awaiting or awaiting not in _LOW_OR_TURNED
        case "Pf":  # ” and » open ”x” and »x«
            return not awaiting and begins_word and after.isalnum()
    return False
