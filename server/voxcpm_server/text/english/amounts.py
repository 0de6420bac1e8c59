"""Numbers that count: ordinals, fractions, powers, ranges, and all digits that no other rule reads."""

from __future__ import annotations

import re
import unicodedata

from voxcpm_server.text.english.numbers import (
    cardinal,
    decimal,
    fraction,
    in_pairs,
    mixed,
    ordinal,
    plural,
    spelled,
    vulgar,
)
from voxcpm_server.text.english.rules import DASH, END, NUMBER, START, Match, Rule, rule, text_before
from voxcpm_server.text.english.units import VULGAR

LONG = 10  # digits without commas that are a number of something, such as an account
SCALES = {
    "k": "thousand",
    "K": "thousand",
    "M": "million",
    "m": "million",
    "bn": "billion",
    "tn": "trillion",
    "mn": "million",
}
_QUANTITY = re.compile(  # it ends what stands before a dash, and is not a part of a name such as Llama-3.1
    r"(?<![\w.])(?<![A-Za-z][-.])(\d[\d,]*(?:\.\d+)?)(?:[:/]\d+)*"
    r"(?: ?(?:[%°€£$¢+]|°?[A-Za-z]{1,4}|[ap]\.m\.|[A-Za-z]+/[a-z]+|[a-z]*[²³]))?$"
)
_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_PLACE = re.compile(r"\b(?:[Ss]tep|[Pp]age|[Pp]art|[Qq]uestion|[Ss]lide|[Ee]pisode|[Tt]ask|[Cc]hapter) $")
_RAN = re.compile(r"\b(?:[Rr]an|[Rr]uns?|[Rr]unning)(?: an?| the| my| his| her)? $")
_RACE = re.compile(r" (?:race|run|runner|screen|TV|video|monitor|resolution|display|marathon|jog)\b")


def _ordinal(match: Match) -> str:
    return ordinal(int(match[1].replace(",", "")))


def _fraction(match: Match) -> str | None:
    """1/2, 8/10, 4.5/5."""
    above, below = match[1], int(match[2])
    if re.match(r" ?=", match.string[match.end() :]):
        return f"{decimal(above)} divided by {cardinal(below)}"
    if "." in above:
        return f"{decimal(above)} out of {cardinal(below)}"
    if _PLACE.search(text_before(match)) and "." not in above:
        return f"{decimal(above)} of {cardinal(below)}"
    if re.match(r" of\b", match.string[match.end() :]) is None and _is_score(int(above), below):
        return f"{decimal(above)} out of {cardinal(below)}"
    return fraction(int(above), below) or f"{cardinal(int(above))} over {cardinal(below)}"


def _is_score(above: int, below: int) -> bool:
    return above > 1 and (below in (10, 100) or above == below)


def _mixed(match: Match) -> str | None:
    part = fraction(int(match[2]), int(match[3]))
    return part and mixed(int(match[1]), part)


def _vulgar(match: Match) -> str:
    return mixed(int(match[1]), vulgar(match[2])) if match[1] else vulgar(match[2])


def _power_of_ten(match: Match) -> str:
    """1e-5, 6.02E23."""
    return f"{decimal(match[1])} times ten {_to_the(match[2])}"


def _power(match: Match) -> str:
    """10^6, 2^10, x^2; 10⁶."""
    return f" {_to_the(unicodedata.normalize('NFKC', match[1]).strip('^{}()'))}"


def _to_the(exponent: str) -> str:
    exponent = exponent.lstrip("+").replace("\u2212", "-")
    if exponent in ("2", "3"):
        return {"2": "squared", "3": "cubed"}[exponent]
    sign = "minus " if exponent.startswith("-") else ""
    digits = exponent.removeprefix("-")
    return f"to the power of {sign}{decimal(digits) if digits[0].isdecimal() else digits}"


def _scaled(match: Match) -> str | None:
    """20k, 1.5M, 3bn; but a 4K screen, and a 10K race."""
    number, scale = match[1], match[2]
    run = scale in "kK" and _RAN.search(text_before(match))
    if run or (
        scale in "kK" and (_RACE.match(match.string, match.end()) or (scale == "K" and number in ("2", "4", "5", "8")))
    ):
        return f"{decimal(number)} {scale}"
    return f"{decimal(number)} {SCALES[scale]}"


def _times(match: Match) -> str:
    return f"{decimal(match[1])} times"


def _multiplied(match: Match) -> str:
    """3 x 4 = 12, or a room of 3 x 4 m."""
    rest = match.string[match.end() :]
    return (
        " times "
        if match[0].startswith(" ") and re.match(r"[\d.,]+ ?(?:=|is\b|x\b|×)|10[\^⁻⁰¹²³⁴⁵⁶⁷⁸⁹]", rest)
        else " by "
    )


def _dash(match: Match) -> str | None:
    """The reading of a dash between two numbers: a range, or a subtraction."""
    spaced, mark = match[1].startswith(" "), match[1].strip()
    before = _QUANTITY.search(text_before(match))
    if before is None or (spaced and not match[1].endswith(" ")):
        return None
    after = re.match(r"[$€£'’]?(\d+(?:\.\d+)?)( ?=)?", match.string[match.end() :])
    falls = bool(after and float(before[1].replace(",", "")) > float(after[1]))
    if mark == "\u2212" or (after and after[2]) or (spaced and mark == "-" and falls):
        return " minus "
    return " to "


def _plurals(match: Match) -> str:
    return plural(in_pairs(match[1]))


def _number(match: Match) -> str:
    text = match[0]
    if text.isdecimal() and (len(text) >= LONG or (len(text) > 1 and text.startswith("0"))):
        return spelled(text)
    return decimal(text)


RULES: tuple[Rule, ...] = (
    rule(r"(?<![\w.])(\d{1,3}(?:,\d{3})+|\d+) ?(?:st|nd|rd|th)(?!\w)", _ordinal),
    rule(rf"{START}(\d+)[ -](\d{{1,3}})/(\d{{1,3}})(?![\w/])", _mixed),
    rule(rf"{START}(?<!/)(\d+(?:\.\d+)?)/(\d{{1,4}})(?![\w/]|\.\d|,\d)", _fraction),
    rule(rf"{START}(\d+)? ?([{VULGAR}])", _vulgar),
    rule(rf"{START}(\d+(?:\.\d+)?)[eE]([+\u2212-]?\d+)(?!\w)", _power_of_ten),
    rule(r"(?<=[\w)])\^((?:[+\u2212-]?\d+(?:\.\d+)?|[a-z])(?!\w)|\{[+\u2212-]?\d+\}|\([+\u2212-]?\d+\))", _power),
    rule(r"(?<=\d)\*\*(?=\d)", " to the power of "),
    rule(rf"(?<=[\w)])([⁻⁺]?[{_SUPERSCRIPTS}]+)", _power),
    rule(rf"{START}(\d+),(\d{{1,2}})(?= ?[%°])", lambda m: decimal(f"{m[1]}.{m[2]}")),
    rule(rf"(?<=\d) ?{DASH} ?(?=(?:present|now|today)\b)", " to "),
    rule(rf"{START}({NUMBER})(k|K|M|m|bn|mn|tn)(?![\w'])", _scaled),
    rule(rf"{START}({NUMBER})[x×](?!\w)(?! ?[+=^*/\u2212-])", _times),
    rule(rf"{START}({NUMBER})[xX×](?=\d)(?!10[\^⁻⁰¹²³⁴⁵⁶⁷⁸⁹])", lambda m: f"{decimal(m[1])} by "),
    rule(r"(?<=\d)( ?[xX] ?)(?=\d)", _multiplied),
    rule(
        rf"(?<=\S)( ?{DASH} ?)(?=[$€£'’]?\d)",
        _dash,
    ),
    rule(r"(?<![\w.,])(\d{3,4})'?s(?!\w)", _plurals),
)
PLAIN: tuple[Rule, ...] = (
    rule(r"(?<=\d),(?=\d)", ", "),
    rule(r"(?<=\d) / (?=\d)", " divided by "),
    rule(rf"{START}\d{{1,3}}(?: \d{{3}})* 000(?! ?\d){END}", lambda m: decimal(m[0].replace(" ", ""))),
    rule(rf"(?<![\d.])(?<!\d,)(?:{NUMBER}|(?<!\w)\.\d+){END}", _number),
    rule(NUMBER, _number),
    rule(r"\d+", _number),
)
