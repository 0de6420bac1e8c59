"""Signs and symbols in words."""

from __future__ import annotations

import re
import unicodedata

from voxcpm_server.text.english.numbers import cardinal
from voxcpm_server.text.english.rules import Match, Rule, one_of, rule, text_before

SYMBOLS = {
    "+": " plus ",
    "=": " equals ",
    "==": " equals ",
    "×": " times ",
    "÷": " divided by ",
    "≈": " about ",
    "≤": " less than or equal to ",
    "≥": " greater than or equal to ",
    "<=": " less than or equal to ",
    ">=": " greater than or equal to ",
    "≠": " not equal to ",
    "!=": " not equal to ",
    "±": " plus or minus ",
    "+/-": " plus or minus ",
    "√": " square root of ",
    "∞": " infinity",
    "→": " to ",
    "->": " to ",
    "%": " percent",
    "‰": " per mille",
    "°": " degrees",
    "&": " and ",
    "@": " at ",
}
DIRECTIONS = {"N": "north", "S": "south", "E": "east", "W": "west"}
_BEFORE_NUMBER = r"(?=[$€£]?\.?\d)"


def _compared(match: Match) -> str:
    """x > 3 compares; > 3 is a limit."""
    sign = match[1]
    before = text_before(match)
    if not (before and (before[-1].isalnum() or before[-1] in ")%")) or re.fullmatch(r" [<>]", match[0]):
        return "more than " if sign == ">" else "less than "
    return " is greater than " if sign == ">" else " is less than "


def _before_digits(match: Match) -> str:
    """GPT-4 loses its hyphen, 9-to-5 keeps it, and x-5 is a subtraction."""
    before = text_before(match)
    if re.search(r"(?<![\w-])[a-z]$", before):
        return " minus "
    return "-" if re.search(r"\d-[a-z]+$", before) else " "


def _about(match: Match) -> str:
    """~5, also after a word that says so."""
    said = re.search(r"\b(?:about|approximately|around|roughly|circa|nearly|almost)\s$", text_before(match), re.I)
    if re.search(r"(?:(?<!\w)[a-zA-Zπ]|[\d)]) $", text_before(match)):
        return " is about "
    return "" if said else " about "


RULES: tuple[Rule, ...] = (
    rule(r"[₀₁₂₃₄₅₆₇₈₉]+", lambda m: cardinal(int(unicodedata.normalize("NFKC", m[0])))),
    rule(r"\b(C|F)#(?!\w)", lambda m: f"{m[1]} sharp"),
    rule(r"(?<=\d) ?~ ?(?=\d)", " to "),
    rule(rf"[~≈] ?{_BEFORE_NUMBER}", _about),
    rule(rf"(?<![\w)\]%.])[-\u2013\u2212]{_BEFORE_NUMBER}", "minus "),
    rule(rf"(?<![\w)\]])\+{_BEFORE_NUMBER}", "plus "),
    rule(r"(?<=\w) ?\u2212 ?(?=[\w(])", " minus "),
    rule(r"(?<=\d) ?\* ?(?=\d)", " times "),
    rule(r"(?<=[\w)%]) ?([<>])(?!=) ?(?=[\w(])", _compared),
    rule(r"([<>])(?!=) ?(?=[$€£]?\d)", _compared),
    rule(r"(?<=[A-Za-z])[-\u2011](?=\d)", _before_digits),
    rule(r"° ?([NSEW])(?!\w)", lambda m: f" degrees {DIRECTIONS[m[1]]}"),
    rule(r"(?<=\d)[-\u2011](?=\d)", " "),
    rule(r"(?<=[A-Za-z])/(?=\d)", " slash "),
    rule(one_of(SYMBOLS), lambda m: SYMBOLS[m[0]]),
)
