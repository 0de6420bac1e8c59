"""Amounts of money."""

from __future__ import annotations

import re
from dataclasses import dataclass

from voxcpm_server.text.english.numbers import cardinal, decimal
from voxcpm_server.text.english.rules import DASH, Match, Rule, modifies, one_of, rule


@dataclass(frozen=True)
class Currency:
    """The names of a currency, and of its hundredth part if that is spoken."""

    one: str
    many: str
    part: str = ""
    parts: str = ""


def _cents(one: str, many: str = "") -> Currency:
    return Currency(one, many or f"{one}s", "cent", "cents")


CURRENCIES = {
    "$": _cents("dollar"),
    "US$": _cents("US dollar"),
    "A$": _cents("Australian dollar"),
    "AU$": _cents("Australian dollar"),
    "C$": _cents("Canadian dollar"),
    "CA$": _cents("Canadian dollar"),
    "HK$": _cents("Hong Kong dollar"),
    "NZ$": _cents("New Zealand dollar"),
    "S$": _cents("Singapore dollar"),
    "R$": _cents("real", "reais"),
    "€": _cents("euro"),
    "£": Currency("pound", "pounds", "penny", "pence"),
    "¥": Currency("yen", "yen"),
    "₹": Currency("rupee", "rupees"),
    "₩": Currency("won", "won"),
    "₽": Currency("ruble", "rubles"),
    "₺": Currency("lira", "lira"),
    "₴": Currency("hryvnia", "hryvnias"),
    "₫": Currency("dong", "dong"),
    "₪": Currency("shekel", "shekels"),
    "₦": Currency("naira", "naira"),
    "₱": Currency("peso", "pesos"),
    "฿": Currency("baht", "baht"),
    "₿": Currency("bitcoin", "bitcoins"),
}
CODES = {
    "USD": CURRENCIES["US$"],
    "EUR": CURRENCIES["€"],
    "GBP": CURRENCIES["£"],
    "JPY": CURRENCIES["¥"],
    "CNY": Currency("yuan", "yuan"),
    "RMB": Currency("yuan", "yuan"),
    "CHF": Currency("Swiss franc", "Swiss francs"),
    "CAD": CURRENCIES["C$"],
    "AUD": CURRENCIES["A$"],
    "NZD": CURRENCIES["NZ$"],
    "HKD": CURRENCIES["HK$"],
    "SGD": CURRENCIES["S$"],
    "INR": CURRENCIES["₹"],
    "KRW": CURRENCIES["₩"],
    "BTC": CURRENCIES["₿"],
}
SCALES = {
    "k": "thousand",
    "K": "thousand",
    "m": "million",
    "M": "million",
    "mn": "million",
    "MM": "million",
    "b": "billion",
    "B": "billion",
    "bn": "billion",
    "Bn": "billion",
    "t": "trillion",
    "T": "trillion",
    "tn": "trillion",
}
_WORDS = "hundred|thousand|million|billion|trillion"
_AMOUNT = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?:\.\d{3})*,\d{2}(?!\d)|\d+(?:\.\d+)?|\.\d+)"
_SCALE = rf"(?: ?(?:{_WORDS}|mn|bn|tn)(?!\w)|{one_of(SCALES)}(?![a-z]))"
_CODE = one_of(CODES)
_SYMBOL = one_of(CURRENCIES)
_PREFIXED = (
    rf"(?<!\w)(?P<currency>{_SYMBOL}|{_CODE} ?) ?(?P<amount>{_AMOUNT})(?P<scale>{_SCALE})?"
    rf"(?: ?(?:{DASH}|to) ?(?P=currency)?(?P<upper>{_AMOUNT})(?P<upper_scale>{_SCALE})?(?![\w/%]))?"
    rf"(?P<plus>\+)?(?: ?(?P<code>{_CODE})(?!\w))?(?!\d)(?P<per>/(?=\d))?"
)
_SUFFIXED = (
    rf"(?<![\w.,])(?P<amount>{_AMOUNT})(?P<scale>{_SCALE})? ?"
    rf"(?P<currency>[$€£¥₹₩₽₺₴₫₪₦₱฿₿](?!\d)|{_CODE}(?!\w))"
)
_EUROPEAN = re.compile(r"\d{1,3}(?:\.\d{3})*,\d{2}")


def _prefixed(match: Match) -> str | None:
    currency = CODES[match["code"]] if match["code"] else _currency(match["currency"].strip())
    amount, scale = _canonical(match["amount"], currency), _scale(match["scale"])
    one = modifies(match)
    if match["upper"]:
        upper, upper_scale = _canonical(match["upper"], currency), _scale(match["upper_scale"])
        last = _sum(upper, upper_scale, currency, one)
        if _has_parts(amount, scale, currency) or _has_parts(upper, upper_scale, currency):
            words = f"{_sum(amount, scale, currency, one)} to {last}"
        else:
            words = f"{decimal(amount)} {scale}".strip() + f" to {last}"
    else:
        words = _sum(amount, scale, currency, one)
    return words + (" plus" if match["plus"] else "") + (" per " if match["per"] else "")


def _suffixed(match: Match) -> str:
    currency = _currency(match["currency"])
    return _sum(_canonical(match["amount"], currency), _scale(match["scale"]), currency, modifies(match))


def _currency(name: str) -> Currency:
    return CURRENCIES.get(name) or CODES[name]


def _scale(text: str | None) -> str:
    word = (text or "").strip()
    return SCALES.get(word, word)


def _canonical(amount: str, currency: Currency) -> str:
    """The amount with a point before its fraction: "1.234,50" is 1234.50, and "1.000" of euros 1000."""
    if _EUROPEAN.fullmatch(amount):
        return amount.replace(".", "").replace(",", ".")
    if currency is CURRENCIES["€"] and re.fullmatch(r"[1-9]\d{0,2}\.\d{3}", amount):
        return amount.replace(".", "")
    return amount


def _has_parts(amount: str, scale: str, currency: Currency) -> bool:
    return bool(not scale and currency.part and re.fullmatch(r"[\d,]*\.\d\d", amount))


def _sum(amount: str, scale: str, currency: Currency, one: bool) -> str:
    """The amount with its currency. `one`: it stands before a noun, so that its currency is in the singular."""
    if not _has_parts(amount, scale, currency):
        single = one or (amount == "1" and not scale)
        return f"{decimal(amount)} {scale} {currency.one if single else currency.many}".replace("  ", " ")
    digits, _, hundredths = amount.replace(",", "").partition(".")
    whole, part = int(digits or 0), int(hundredths)
    parts = f"{cardinal(part)} {currency.part if part == 1 or one else currency.parts}"
    if whole == 0 and part:
        return parts
    words = f"{cardinal(whole)} {currency.one if whole == 1 or one else currency.many}"
    return f"{words} and {parts}" if part else words


def _hundredths(match: Match) -> str:
    one = match[1] == "1" or modifies(match)
    return f"{decimal(match[1])} {'cent' if one else 'cents'}"


RULES: tuple[Rule, ...] = (
    rule(_PREFIXED, _prefixed),
    rule(_SUFFIXED, _suffixed),
    rule(r"(?<![\w.,])(\d+(?:\.\d+)?) ?¢", _hundredths),
    rule(r"(?<![\w.,])(\d+)p(?= (?:a|each|per|off|coin)\b)", lambda m: f"{decimal(m[1])} pence"),
)
