"""English text for a reader: what the library `wetext` reads wrongly, and digits that it leaves."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Match = re.Match[str]
MONTHS = {
    "Jan": "January",
    "Feb": "February",
    "Mar": "March",
    "Apr": "April",
    "Jun": "June",
    "Jul": "July",
    "Aug": "August",
    "Sep": "September",
    "Sept": "September",
    "Oct": "October",
    "Nov": "November",
    "Dec": "December",
}
ORDINARY_MONTHS = "|".join(dict.fromkeys(MONTHS.values()))
UNITS = {"m": "meter", "l": "liter", "L": "liter", "V": "volt", "W": "watt", "kW": "kilowatt", "Hz": "hertz"}
INVARIABLE = {"hertz"}
SYMBOLS = {
    "×": " times ",
    "÷": " divided by ",
    "²": " squared",
    "³": " cubed",
    "≈": " about ",
    "≤": " less than or equal to ",
    "≥": " greater than or equal to ",
    "≠": " not equal to ",
    "±": " plus or minus ",
    "√": " square root of ",
    "→": " to ",
}
CURRENCIES = {"$": ("dollars", "cents"), "£": ("pounds", "pence"), "€": ("euros", "cents")}
_MONTH = re.compile(rf"\b({'|'.join(MONTHS)})\b\.?(?= \d)")
_DAY_OF_MONTH = re.compile(rf"\b({ORDINARY_MONTHS}) (\d{{1,2}})\b(?!\d|:|,\d|\.\d|(?:st|nd|rd|th)\b)")
_DECADE = re.compile(r"\b(1[1-9]|20)([1-9]0)[’']?s\b")
_UNIT = re.compile(rf"(?<![\w.$£€])((?:\d+\.)?\d+) ?({'|'.join(UNITS)})\b(?![/'’²³])")
_PHONE = re.compile(r"(?<![\w-])(?:\+?(\d{1,3})[- ])?(?:\(?(\d{3})\)?[- ])?(\d{3})-(\d{4})(?![\w-])")
_LONG = re.compile(r"(?<![\w.,])\d{10,}(?![\d.,]*\d)")
_VERSION = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+){2,})(?![\w.]*\d)")
_HEIGHT = re.compile(r"(?<!\w)(\d{1,2})['’′] ?(\d{1,2})(?:\"|”|″|'')")
_NUMBER_SIGN = re.compile(r"#(?=\d)|\b[Nn]o\. ?(?=\d)")
_RELATION = re.compile(r"(?<=[\w)]) ?([<>]) ?(?=[\w(])")
_LARGE = re.compile(
    r"(?:([$£€])|(?<![\w,.]))(\d{1,3}(?:,\d{3})+)(?:\.(\d+))?(?![\d,]|\.\d)(?! (?:million|billion|trillion))"
)
_TIMES = re.compile(r"(?<=\d) [xX] (?=\d)")
_DIGITS = re.compile(r"\d+")


def prepared(text: str, words: Callable[[int], str]) -> str:
    """The text with what `wetext` reads wrongly already in words. `words` names a number."""
    text = _LARGE.sub(lambda m: _large(m, words), text)
    text = _MONTH.sub(lambda m: MONTHS[m[1]], text)
    text = _DAY_OF_MONTH.sub(lambda m: f"{m[1]} {_ordinal(int(m[2]))}", text)
    text = _DECADE.sub(lambda m: f"{words(int(m[1]))} {_plural(words(int(m[2])))}", text)
    text = _HEIGHT.sub(r"\1 feet \2 inches", text)
    text = _PHONE.sub(lambda m: ", ".join(_spelled(part) for part in m.groups() if part), text)
    text = _LONG.sub(lambda m: _spelled(m[0]), text)
    text = _VERSION.sub(lambda m: " point ".join(words(int(part)) for part in m[1].split(".")), text)
    text = _UNIT.sub(_unit, text)
    text = _NUMBER_SIGN.sub(lambda m: "Number " if m[0][0] == "N" else "number ", text)
    text = _TIMES.sub(" times ", text)
    text = _RELATION.sub(lambda m: " is greater than " if m[1] == ">" else " is less than ", text)
    for symbol, reading in SYMBOLS.items():
        text = text.replace(symbol, reading)
    return " ".join(text.split())


def without_digits(text: str, engine: Any) -> str:
    """The text with each run of digits that is left in words, by `inflect`."""
    return _DIGITS.sub(lambda m: str(engine.number_to_words(m[0])).replace("-", " ").replace(",", ""), text)


def _ordinal(day: int) -> str:
    suffix = "th" if 10 < day < 14 else {1: "st", 2: "nd", 3: "rd"}.get(day % 10, "th")
    return f"{day}{suffix}"


def _plural(tens: str) -> str:
    return f"{tens.removesuffix('y')}ies" if tens.endswith("y") else f"{tens}s"


def _spelled(digits: str) -> str:
    names = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    return " ".join(names[int(digit)] for digit in digits)


def _large(match: Match, words: Callable[[int], str]) -> str:
    """A number with commas between thousands, and its currency if it has one."""
    currency, whole, fraction = match[1], words(int(match[2].replace(",", ""))), match[3]
    if currency is None:
        return f"{whole} point {_spelled(fraction)}" if fraction else whole
    unit, part = CURRENCIES[currency]
    if fraction is None or len(fraction) != 2:
        return f"{whole} point {_spelled(fraction)} {unit}" if fraction else f"{whole} {unit}"
    return f"{whole} {unit} and {words(int(fraction))} {part}" if int(fraction) else f"{whole} {unit}"


def _unit(match: Match) -> str:
    name = UNITS[match[2]]
    return f"{match[1]} {name if match[1] == '1' or name in INVARIABLE else f'{name}s'}"
