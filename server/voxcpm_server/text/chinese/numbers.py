"""Chinese numbers in words."""

from __future__ import annotations

import re

NAMES = "零一二三四五六七八九"
_UNITS = ((10**8, "亿"), (10**4, "万"), (1000, "千"), (100, "百"), (10, "十"))
_LONGEST = 16  # digits of a number that has a name


def cardinal(digits: str, *, counts: bool = True) -> str:
    """A whole number in words. With `counts`, 两 precedes its first 百, too, and not only 千, 万 and 亿."""
    if len(digits) > _LONGEST:
        return spelled(digits)
    words = _named(int(digits))
    if words.startswith("一十"):
        return words[1:]
    return re.sub("^二(?=[百千万亿])" if counts else "^二(?=[千万亿])", "两", words)


def spelled(digits: str, *, one: str = "一") -> str:
    """Each digit by its own name. Telephone numbers and the like take 幺 for 1."""
    return "".join(one if digit == "1" else NAMES[int(digit)] for digit in digits)


def decimal(number: str, *, counts: bool = True) -> str:
    """A number with or without a fraction in words; one that begins with a needless zero by its digits."""
    whole, point, fraction = number.partition(".")
    if not point and len(whole) > 1 and whole[0] == "0":
        return spelled(whole)
    return cardinal(whole, counts=counts) + (f"点{spelled(fraction)}" if point else "")


def _named(number: int) -> str:
    for size, unit in _UNITS:
        if number >= size:
            count, rest = divmod(number, size)
            gap = "零" if 0 < rest < size // 10 else ""
            return f"{_named(count)}{unit}{gap}{_named(rest) if rest else ''}"
    return NAMES[number]
