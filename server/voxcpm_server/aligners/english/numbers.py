"""The English readings of digits, as an aligner needs them: several, of which the speech shows the right one."""

from __future__ import annotations

from collections.abc import Iterator

SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
THOUSANDS = ((10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))
ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
LONGEST = 15  # digits of a number that is read as one


def readings(digits: str) -> Iterator[list[str]]:
    """The readings of a run of digits, each as its words: as a number, as a year, and digit by digit."""
    if len(digits) <= LONGEST and (digits == "0" or digits[0] != "0"):
        yield cardinal(int(digits))
    if len(digits) in (3, 4) and digits[0] != "0":
        yield _year(digits)
    if len(digits) > 1:
        yield [SMALL[int(one)] for one in digits]
        yield ["oh" if one == "0" else SMALL[int(one)] for one in digits]


def cardinal(number: int) -> list[str]:
    """A number from 0 on in words."""
    for size, name in THOUSANDS:
        if number >= size:
            rest = number % size
            return [*cardinal(number // size), name, *(cardinal(rest) if rest else ())]
    if number < len(SMALL):
        return [SMALL[number]]
    return [TENS[number // 10], *([SMALL[number % 10]] if number % 10 else ())]


def ordinal(words: list[str]) -> list[str]:
    """A number in words as an ordinal."""
    last = words[-1]
    return [*words[:-1], ORDINALS.get(last) or (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")]


def _year(digits: str) -> list[str]:
    century, rest = int(digits[:-2]), int(digits[-2:])
    if not rest:
        return [*cardinal(century), "hundred"]
    return [*cardinal(century), *(["oh"] if rest < 10 else ()), *cardinal(rest)]
