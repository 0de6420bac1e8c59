"""Numbers in English words, by the library `inflect`."""

from __future__ import annotations

import unicodedata
from functools import cache, lru_cache
from typing import Any

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LONGEST = 33  # digits of a number that `inflect` can name


@cache
def engine() -> Any:
    """The library, loaded with the first number."""
    import inflect

    return inflect.engine()


@lru_cache(4096)
def cardinal(number: int) -> str:
    """1234: one thousand two hundred and thirty four."""
    return _plain(engine().number_to_words(number)) if number < 10**LONGEST else spelled(str(number))


@lru_cache(4096)
def ordinal(number: int) -> str:
    """21: twenty first."""
    return _plain(engine().number_to_words(engine().ordinal(number))) if number < 10**LONGEST else spelled(str(number))


@lru_cache(4096)
def plural(words: str) -> str:
    """The words with the last one in the plural."""
    head, space, last = words.rpartition(" ")
    if last == "six":
        return f"{head}{space}sixes"
    if last.endswith("y"):
        return f"{head}{space}{last[:-1]}ies"
    return f"{head}{space}{engine().plural_noun(last)}"


def spelled(digits: str) -> str:
    """Each digit by its name; other characters as they are."""
    return " ".join(DIGITS[int(one)] if one.isdecimal() else one for one in digits)


def decimal(text: str) -> str:
    """A number with commas between thousands, and a point: "1,234.50"."""
    whole, point, fraction = text.replace(",", "").partition(".")
    words = (spelled(whole) if len(whole) > 1 and whole[0] == "0" else cardinal(int(whole))) if whole else ""
    return f"{words} point {spelled(fraction)}".strip() if point else words


def year(number: int) -> str:
    """1905: nineteen oh five; 2024: twenty twenty four."""
    century, rest = divmod(number, 100)
    if number < 1000 or number % 1000 < 10:
        return cardinal(number)
    return f"{cardinal(century)} {_pair(rest)}"


def in_pairs(digits: str) -> str:
    """The digits of a name or a label: "305" is three oh five, "4090" forty ninety."""
    if digits.startswith("0") or len(digits) > 4:
        return spelled(digits)
    number = int(digits)
    if len(digits) < 3 or (len(digits) == 3 and number % 100 == 0) or number % 1000 == 0:
        return cardinal(number)
    return f"{cardinal(number // 100)} {_pair(number % 100)}"


def of_version(digits: str) -> str:
    """A part of a version: "04" is oh four, "12" twelve."""
    if len(digits) > 1 and digits.startswith("0"):
        return spelled(digits).replace("zero", "oh", 1) if len(digits) == 2 and digits != "00" else spelled(digits)
    return in_pairs(digits)


def fraction(above: int, below: int) -> str | None:
    """3/4: three quarters. None if nobody would name it so."""
    if above == 0 or not 2 <= below <= 1000 or (below > 20 and below not in (32, 64, 100, 1000)):
        return None
    name = {2: "half", 4: "quarter"}.get(below) or ordinal(below)
    if above == 1:
        return f"one {name}"
    return f"{cardinal(above)} {'halves' if below == 2 else plural(name)}"


def vulgar(character: str) -> str:
    """½: one half."""
    above, below = (int(part) for part in unicodedata.normalize("NFKC", character).split("\u2044"))
    return fraction(above, below) or cardinal(above)


def mixed(whole: int, part: str) -> str:
    """3 and "one half": three and a half."""
    return f"{cardinal(whole)} and {'a' + part.removeprefix('one') if part.startswith('one ') else part}"


def _pair(rest: int) -> str:
    if rest == 0:
        return "hundred"
    return f"oh {cardinal(rest)}" if rest < 10 else cardinal(rest)


def _plain(words: Any) -> str:
    return str(words).replace("-", " ").replace(",", "")
