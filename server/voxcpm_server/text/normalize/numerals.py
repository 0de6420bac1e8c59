"""Numbers in the words of other languages than English and Chinese, by the rules of Unicode's CLDR.

A number is written out only where its words are certain. So it keeps its digits if its forms differ by gender, case or
variant of the language, if the text shows that it is no amount (a time, a version, a telephone number), or if another
country would read its marks differently. The model reads digits itself.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from voxcpm_server.text.normalize.number_rules import LANGUAGES, Language, Special

Match = re.Match[str]
LONGEST = 6  # digits without marks between thousands; longer ones are rather codes
_INVISIBLE = str.maketrans("", "", "\u00ad\u200b")  # CLDR marks where words may be broken
_ABUTTING = r".,:;/\\+\-–—−#@&'’°′″^~*=<>|_"  # these signs make one thing of what is on both sides
_OPERATORS = r"+\-–−×÷*/=<>"
_GROUP = re.compile("<(n|before)>")


def numbers_in_words(text: str, language: str) -> str:
    """The text with its numbers in words, where those are certain. `language` is a key of LANGUAGES."""
    return _pattern(language).sub(lambda match: _read(match, LANGUAGES[language]), text)


@cache
def _pattern(language: str) -> re.Pattern[str]:
    """A number, with its sign of money or percent if it has one, or something of which the language makes a special."""
    one = LANGUAGES[language]
    letter = r"A-Za-zÀ-ɏ\d" if one.joined else r"\w"
    marks = rf"(?:[{one.thousands}]\d{{2,3}})*[{one.thousands}]\d{{3}}(?!\d)" if one.thousands else r"(?!)"
    decimals = rf"(?:{re.escape(one.decimal)}(?P<fraction>\d+))?" if one.decimal else "(?P<fraction>(?!))?"
    signs = "|".join(map(re.escape, (*one.money, "%")))
    specials = "".join(
        f"(?P<s{index}>" + _GROUP.sub(rf"<\g<1>{index}>", special.pattern) + ")|"
        for index, special in enumerate(one.special)
    )
    return re.compile(
        rf"{specials}(?<![{letter}{_ABUTTING}$€£¥₩₹%])(?<!\d )(?<![{_OPERATORS}] )(?:(?P<sign>{signs}) ?)?"
        rf"(?P<whole>\d{{1,3}}{marks}|\d+){decimals}"
        rf"(?: ?(?P<unit>{signs})|(?! \d))(?![{letter}])(?! ?[$€£¥₩₹°′″‰%])(?![{_ABUTTING}][{letter}])"
        rf"(?! [{_OPERATORS}] )"
    )


def _read(match: Match, language: Language) -> str:
    """The words of a match, or the match itself if they are not certain."""
    for index, special in enumerate(language.special):
        if match[f"s{index}"] is not None:
            return _special(match, language, special, index) or match[0]
    sign, unit = match["sign"], match["unit"]
    digits = re.sub(r"\D", "", match["whole"])
    plain = digits == match["whole"]
    if (sign and unit) or (digits[0] == "0" and len(digits) > 1) or (plain and len(digits) > LONGEST):
        return match[0]
    number, fraction = int(digits), match["fraction"]
    if number > language.largest or (fraction and plain and number and len(fraction) == 3):
        return match[0]  # three decimals may be thousands of another country
    if not (mark := sign or unit):
        return _decimal(language, number, fraction) or match[0]
    if mark == "%":
        return _percent(language, number, fraction) or match[0]
    return _money(language, mark, number, fraction) or match[0]


def _special(match: Match, language: Language, special: Special, index: int) -> str:
    if f"n{index}" not in match.re.groupindex:
        return ""
    groups = match.groupdict(default="")
    number = int(groups[f"n{index}"])
    word = "" if number in special.but else _agreed(language, number, special.rules or _cardinals(language))
    return word and groups.get(f"before{index}", "") + special.prefix + word


def _decimal(language: Language, number: int, fraction: str | None) -> str:
    if not fraction:
        return _agreed(language, number, _cardinals(language))
    whole = language.zero if language.zero and not number else _numbering(language, number)
    if language.grouped and len(fraction) == 2 and fraction[0] != "0":
        parts = [_numbering(language, int(fraction))]
    else:
        parts = [_numbering(language, int(digit)) for digit in fraction]
    space = " " if language.point.startswith(" ") else ""
    return whole + language.point + space.join(parts) if language.point and whole and all(parts) else ""


def _percent(language: Language, number: int, fraction: str | None) -> str:
    amount = _decimal(language, number, fraction) if fraction else _counted(language, number)
    return language.percent.format(amount) if amount and language.percent else ""


def _money(language: Language, sign: str, number: int, fraction: str | None) -> str:
    if number >= 10**6 and language.counted:  # French says "un million d'euros"
        return ""
    unit = language.money[sign][number != 1]
    amount = _counted(language, number)
    space = "" if language.joined else " "
    if not amount or not unit:
        return ""
    if not fraction or not int(fraction):
        return amount + space + unit
    cents = _counted(language, int(fraction))
    if len(fraction) != 2 or language.cents is None or not cents or not number:
        return ""
    return amount + space + unit + language.cents + cents


def _counted(language: Language, number: int) -> str:
    return _agreed(language, number, (language.counted,) if language.counted else _cardinals(language))


def _numbering(language: Language, number: int) -> str:
    return _agreed(language, number, ("spellout-numbering",) if not language.rules else language.rules[:1])


def _agreed(language: Language, number: int, rules: tuple[str, ...]) -> str:
    """The words on which all rules of all locales agree; empty if they do not."""
    found = {_spelled(locale, number, rule) for locale in language.locales for rule in rules}
    return found.pop() if len(found) == 1 else ""


def _cardinals(language: Language) -> tuple[str, ...]:
    return language.rules or tuple(
        rule for rule in _engine(language.locales[0]).rulesets if rule.startswith("spellout-cardinal")
    )


@cache
def _engine(locale: str) -> Any:
    from unicode_rbnf import RbnfEngine

    return RbnfEngine.for_language(locale)


def _spelled(locale: str, number: int, rule: str) -> str:
    return str(_engine(locale).format_number(number, ruleset_names=[rule]).text).translate(_INVISIBLE)
