"""Dates, years, decades, and ranges of them."""

from __future__ import annotations

import re

from voxcpm_server.text.english.numbers import cardinal, of_version, ordinal, plural, year
from voxcpm_server.text.english.rules import DASH, END, START, Match, Rule, listed, rule, text_before

MONTHS = listed("January February March April May June July August September October November December")
WEEKDAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_MONTH = (
    r"(?:(?:January|February|March|April|May|June|July|August|September|October|November|December|MAY)\b"
    r"|(?:Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|JAN|FEB|MAR|APR|JUN|JUL|AUG|SEP|OCT|NOV|DEC)\b"
    r"(?:\.(?=,| [\da-z]))?)"
)
_WEEKDAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun|Tues|Thurs?|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day)"
_TH = r"(?:st|nd|rd|th)"
_DAY = rf"(?:0?[1-9]|[12]\d|3[01]){_TH}?"
_YEAR = r"(?:1\d|20)\d\d"
_AFTER_DAY = rf"(?!\w|:\d|[.,]\d|/\d|{DASH}\d)"
_YEAR_WORDS = listed(
    "in since until till circa by before after during from year years early late mid summer spring autumn fall "
    "winter around c. ca. class copyright © between through election vintage established est. born died model of "
    "and to"
)
_SURE_WORDS = listed("since year circa copyright © c. ca. early late mid vintage est. born")
_YEAR_AFTER = re.compile(
    r" (?:elections?|season|edition|Olympics?|Olympic Games|World Cup|census|budget|report|crash|crisis|film|movie"
    r"|novel|model|AD|BC|BCE|CE|A\.D\.|B\.C\.)(?!\w)"
)
_OF_A_DECADE = re.compile(r" (?:music|hits?|pop|rock|fashion|style|films?|movies?|kids?|nostalgia|themed?|cars?|TV)\b")
_TOTAL = re.compile(
    r"\b(?:total|sum|maximum|minimum|max|min|number|amount|average|mean|cost|price|count|score|population|limit) of $"
)
_COUNTED = re.compile(r"(?: |-)(?:[a-z]+ )?(?:[a-z]{2,}s|people|men|women|children|of|percent)\b(?! (?:was|is)\b)")
_NOT_COUNTED = re.compile(r" (?:was|is|has|as|its|his|this|thus|always|towards|across|perhaps|sees|marks|brings)\b")


def _month(text: str) -> str:
    start = text[:3].title()
    return next(month for month in MONTHS if month.startswith(start))


def _dated(day: int, month: int, of_year: str | None) -> str | None:
    """The date as Americans say it: May third, twenty twenty four."""
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    words = f"{MONTHS[month - 1]} {ordinal(day)}"
    return f"{words}, {_year(of_year)}" if of_year else words


def _year(digits: str) -> str:
    if len(digits) == 2:
        return year((1900 if int(digits) >= 40 else 2000) + int(digits))
    return year(int(digits))


def _iso(match: Match) -> str | None:
    words = _dated(int(match["day"]), int(match["month"]), match["year"])
    clock = re.match(r" \d{1,2}:\d\d", match.string[match.end() :])
    return f"{words}, " if words and (match["time"] or clock) else words


def _numeric(match: Match) -> str | None:
    first, second = int(match[1]), int(match[3])
    day_first = match[2] == "." or first > 12
    return _dated(first, second, match[4]) if day_first else _dated(second, first, match[4])


def _announced(match: Match) -> str | None:
    """A date without a year, after a word that tells it from a fraction: "on 3/14"."""
    first, second = int(match[2]), int(match[3])
    if (first, second) in ((9, 11), (24, 7), (50, 50)):
        return None
    words = _dated(first, second, None) if first > 12 else _dated(second, first, None)
    return words and f"{match[1]} {words}"


def _number(day: str) -> int:
    return int(re.sub(r"\D", "", day))


def _after_month(match: Match) -> str:
    """May 3, May 3-5, May 3 2024."""
    words = f"{_month(match['month'])} {ordinal(_number(match['day']))}"
    if match["last"]:
        words += f" to {ordinal(_number(match['last']))}"
    return f"{words}, {year(int(match['year']))}" if match["year"] else words


def _before_month(match: Match) -> str:
    """3 May, 3rd of May 2024, 3-5 May, 3-May-2024."""
    days = ordinal(_number(match["day"]))
    if match["last"]:
        days += f" to {ordinal(_number(match['last']))}"
    article = "" if re.search(r"\bthe\s$", text_before(match), re.IGNORECASE) else "the "
    words = f"{article}{days} of {_month(match['month'])}"
    return f"{words} {_year(match['year'])}" if match["year"] else words


def _month_and_year(match: Match) -> str:
    return f"{_month(match[1])} {year(int(match[2]))}"


def _decade(match: Match) -> str | None:
    """1990s, '90s, 90's, 2000s."""
    century, tens = match["century"], match["tens"]
    if century is None:
        before = text_before(match)
        known = match["mark"] or re.search(
            rf"(?:\b(?:the|his|her|their|my|your|our|early|mid|late|low|high|upper|in|and|to)|{DASH})\s?$",
            before,
            re.IGNORECASE,
        )
        known = known or _OF_A_DECADE.match(match.string, match.end())
        if tens == "00":
            return "two thousands" if match["mark"] else None
        return plural(cardinal(int(tens))) if known else None
    if tens == "00":
        return plural(cardinal(int(f"{century}00"))) if century[1] == "0" else f"{cardinal(int(century))} hundreds"
    return f"{cardinal(int(century))} {plural(cardinal(int(tens)))}"


def _years(match: Match) -> str | None:
    """2019-2021, 1939-45; 2024-05, which is a month."""
    first, last = int(match[1]), match[2]
    if len(last) == 2:
        if int(last) > first % 100:
            return f"{year(first)} to {of_version(last)}"
        return f"{MONTHS[int(last) - 1]} {year(first)}" if 1 <= int(last) <= 12 else None
    return f"{year(first)} to {year(int(last))}" if int(last) >= first else None


def _season(match: Match) -> str | None:
    first, last = int(match[1]), match[2]
    if (first + 1) % 100 != int(last) % 100:
        return None
    return f"{year(first)} {of_version(last) if len(last) == 2 else year(int(last))}"


def _short_year(match: Match) -> str | None:
    """'69; but not '20 people', which is quoted."""
    return None if re.search(r"['’](?!\w)", match.string[match.end() :]) else of_version(match[1])


def _era(match: Match) -> str:
    """44 BC, AD 79."""
    number = int(match["number"])
    return year(number) if number >= 1100 else cardinal(number)


def _lone_year(match: Match) -> str | None:
    """Four digits that are a year by the words around them."""
    number, text = int(match[0]), match.string
    before = re.search(r"(\S+)\s*[(\[]?$", text[: match.start()])
    word = before[1].lower().lstrip("([\"'") if before else ""
    counted = bool(_COUNTED.match(text, match.end())) and not _NOT_COUNTED.match(text, match.end())
    if word in _SURE_WORDS or _YEAR_AFTER.match(text, match.end()):
        return year(number)
    recent = 1900 <= number < 2100
    if not recent and (word in ("to", "and", "from") or _TOTAL.search(text[: match.start()])):
        return None
    if word in _YEAR_WORDS:
        return year(number) if (recent and word not in ("of", "to", "and", "from")) or not counted else None
    if word == "the":
        return year(number) if recent else None
    bracketed = text[: match.start()].endswith("(") and text[match.end() :].startswith(")")
    return year(number) if bracketed or (recent and not counted) else None


def _from_year_to_year(match: Match) -> str | None:
    first, last = int(match[2]), int(match[4])
    counted = _COUNTED.match(match.string, match.end()) and not _NOT_COUNTED.match(match.string, match.end())
    if counted or not 1000 < first <= last < 2200:
        return None
    return f"{match[1]} {year(first)} {match[3]} {year(last)}"


def _day_name(text: str) -> str:
    return next(day for day in WEEKDAYS if day.startswith(text[:3]))


def _weekday(match: Match) -> str:
    return _day_name(match[1]) + (match[2] or "")


def _months(match: Match) -> str:
    return f"{_month(match[1])} to "


RULES: tuple[Rule, ...] = (
    rule(
        START + r"(?P<year>\d{4})(?P<mark>[-/.])(?P<month>\d{1,2})(?P=mark)(?P<day>\d{1,2})"
        r"(?:(?P<time>T(?=\d\d:))|(?!\w)(?![.,/-]\d))",
        _iso,
    ),
    rule(START + r"(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?![\w/])(?![.,-]\d)", _numeric),
    rule(START + r"(\d{1,2})(/)(\d{1,2})/(\d{2})(?![\w/])(?![.,-]\d)", _numeric),
    rule(
        r"\b([Oo]n|[Bb]y|[Uu]ntil|[Ss]ince|[Bb]efore|[Aa]fter|[Dd]ue|[Dd]ated?|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day,?)"
        r" (\d{1,2})/(\d{1,2})(?![\w/])(?![.,-]\d)",
        _announced,
    ),
    rule(
        rf"(?<!\w)(?P<month>{_MONTH}) (?P<day>{_DAY})(?: ?{DASH} ?(?P<last>{_DAY}))?{_AFTER_DAY}"
        rf"(?:,? (?P<year>{_YEAR}){END})?(?! (?:million|billion|percent|%))",
        _after_month,
    ),
    rule(
        rf"{START}(?:(?P<day>{_DAY})(?: ?{DASH} ?(?P<last>{_DAY}))?)(?: of )?(?: |-|(?<= of ))(?P<month>{_MONTH})"
        rf"(?:(?:,? |-)(?P<year>{_YEAR}){END})?(?!\w)",
        _before_month,
    ),
    rule(rf"(?<!\w)({_MONTH})(?:,? |-)({_YEAR}){END}(?!{DASH}\d)", _month_and_year),
    rule(
        rf"(?<!\w)({_WEEKDAY})\b(?:\.(?= [a-z])|\.?(,?)(?= (?:{_MONTH} )?\d))",
        _weekday,
    ),
    rule(r"(?<![\w.,])(?:(?P<century>1\d|20)|(?P<mark>['’])|)(?P<tens>\d0)['’]?s(?!\w)", _decade),
    rule(rf"{START}({_YEAR}) ?[-\u2010-\u2014] ?({_YEAR}|\d\d){END}(?!{DASH}\d)", _years),
    rule(
        rf"\b([Ii]n|[Ss]ince|[Uu]ntil|[Ll]ast|[Nn]ext|[Ee]arly|[Ll]ate|[Mm]id|[Tt]hrough) ({_MONTH})(?!\w)",
        lambda m: f"{m[1]} {_month(m[2])}",
    ),
    rule(rf"(?<!\w)({_MONTH}) ?{DASH} ?(?={_MONTH})", _months),
    rule(rf"(?:(?<=\d)|(?<=\d(?:st|nd|rd|th))) ?{DASH} ?(?={_MONTH} \d)", " to "),
    rule(
        rf"(?<!\w)({_WEEKDAY})\.? ?{DASH} ?({_WEEKDAY})(?!\w)",
        lambda m: f"{_day_name(m[1])} to {_day_name(m[2])}",
    ),
    rule(rf"{START}({_YEAR})/({_YEAR}|\d\d){END}(?!/)", _season),
    rule(r"(?<!\w)['’](\d\d)(?![\w'’:])(?![.,]\d)", _short_year),
    rule(r"(?<![\w.,])(?P<number>\d{1,4})(?= (?:BCE?|CE|AD|B\.C\.|A\.D\.)(?!\w))", _era),
    rule(r"(?<=AD )(?P<number>\d{1,4})" + END, _era),
    rule(
        rf"\b([Ff]rom|[Bb]etween) ([1-9]\d{{3}}) (to|and|until|till|through) ([1-9]\d{{3}}){END}",
        _from_year_to_year,
    ),
    rule(rf"{START}[12]\d{{3}}{END}(?!%|[:/]\d|{DASH}\d)", _lone_year),
)
