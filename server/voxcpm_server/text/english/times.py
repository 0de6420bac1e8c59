"""Times of day, durations and ratios."""

from __future__ import annotations

import re

from voxcpm_server.text.english.numbers import cardinal, decimal
from voxcpm_server.text.english.rules import DASH, NUMBER, START, Match, Rule, rule, text_before

NAMES = {"d": "day", "h": "hour", "m": "minute", "s": "second"}
_HALF = r"(?P<half>[ap])(?:\.\s?m\.?|m\b)|(?P<capital>[AP])(?:\.\s?M\.?|M\b)"
_SENTENCE_GOES_ON = re.compile(
    r"\s(?:[a-z0-9(&–—-]|[A-Z]{2,4}\b|(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|Eastern|Pacific|Central|Mountain"
    r"|January|February|March|April|May|June|July|August|September|October|November|December|on)"
)
_RATIO = re.compile(r"\b(?:ratio|scale|aspect|odds|mix|proportions?)(?: \w+){0,2}[ :]*$", re.IGNORECASE)
_VERSE = re.compile(
    r"\b(?:Psalms?|Genesis|Exodus|Leviticus|Deuteronomy|Isaiah|Jeremiah|Ezekiel|Daniel|Proverbs|Matthew|Mark|Luke|John"
    r"|Acts|Romans|Corinthians|Galatians|Ephesians|Philippians|Hebrews|James|Peter|Revelation|[Vv]erse|Quran|Surah) $"
)
_HALF_FOLLOWS = re.compile(rf" ?{DASH} ?\d{{1,2}}(?::\d\d)? ?(?:[ap]\.?m|[AP]\.?M)")  # 7:00-9:00 p.m. matches
_PART = r"\d+ ?(?:days?|d|hours?|hrs?|h|minutes?|mins?|m|seconds?|secs?|s)"


def _clock(match: Match) -> str | None:
    hour, minute, second = int(match["hour"]), int(match["minute"]), match.groupdict().get("second")
    half = _half(match)
    if minute > 59 or (not half and _RATIO.search(text_before(match))):
        return None
    of_range = _HALF_FOLLOWS.match(match.string, match.end())
    words = _hour_and_minute(hour, minute, bool(half or of_range), second is not None)
    if second is not None:
        words += f" {_two(int(second))}" if int(second) else ""
    return words + half + (" UTC" if match.groupdict().get("zulu") else "")


def _hour_and_minute(hour: int, minute: int, half: bool, seconds: bool) -> str:
    if minute:
        return f"{cardinal(hour)} {_two(minute)}"
    if seconds and not half:
        return f"{cardinal(hour)} zero zero"
    if half:
        return cardinal(hour)
    if hour > 24:
        return f"{cardinal(hour)} minutes"
    return f"{cardinal(hour)} o'clock" if 1 <= hour <= 12 else f"{cardinal(hour)} hundred"


def _two(minute: int) -> str:
    return f"oh {cardinal(minute)}" if minute < 10 else cardinal(minute)


def _half(match: Match) -> str:
    """AM or PM, with the full stop of a sentence that ends there."""
    letter = match["half"] or match["capital"]
    if not letter:
        return ""
    rest = match.string[match.end() :]
    ends = (
        match[0].endswith(".")
        and (not rest or not re.match(r"[,;:?!.)-]|'s", rest))
        and not _SENTENCE_GOES_ON.match(rest)
    )
    return f" {letter.upper()}M" + ("." if ends else "")


def _hour(match: Match) -> str | None:
    hour = int(match["hour"])
    return cardinal(hour) + _half(match) if hour <= 24 else None


def _duration(match: Match) -> str:
    return " ".join(_part(number, name) for number, name in re.findall(r"(\d+) ?([a-z])", match[0]))


def _hours_and_minutes(match: Match) -> str:
    return f"{_part(match[1], 'h')} {_part(match[2], 'm')}"


def _part(number: str, name: str) -> str:
    return f"{cardinal(int(number))} {NAMES[name]}{'' if int(number) == 1 else 's'}"


def _ratio(match: Match) -> str:
    """16:9; but Psalm 23:4 is a verse."""
    between = " " if _VERSE.search(text_before(match)) else " to "
    return between.join(decimal(part) for part in match[0].split(":"))


RULES: tuple[Rule, ...] = (
    rule(
        rf"(?:{START}|(?<=\dT))(?P<hour>\d{{1,2}}):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.0+)?)?"
        rf"(?P<zulu>Z\b)?(?: ?(?:{_HALF}))?(?![\w:])(?![.,]\d)",
        _clock,
    ),
    rule(rf"{START}(?P<hour>\d{{1,2}})\.(?P<minute>[0-5]\d) ?(?:{_HALF})(?!\w)", _clock),
    rule(rf"{START}(?P<hour>\d{{1,2}}) ?(?:{_HALF})(?!\w)", _hour),
    rule(rf"(?<![\w.,$€£])(?:{_PART}(?:,? (?:and )?)?)*{_PART}(?:,? ?)(?:{_PART})(?!\w|/)", _duration),
    rule(r"(?<![\w.,])(\d+)h ?([0-5]?\d)(?!\w)", _hours_and_minutes),
    rule(rf"{START}(?<!:)\d+(?::{NUMBER})+(?![\w:])", _ratio),
)
