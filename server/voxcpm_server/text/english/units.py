"""Quantities with units of measurement."""

from __future__ import annotations

import re

from voxcpm_server.text.english.numbers import cardinal, decimal, fraction, mixed, plural, vulgar
from voxcpm_server.text.english.rules import NUMBER, START, Match, Rule, modifies, one_of, rule, text_before

PREFIXES = {
    "k": "kilo",
    "K": "kilo",
    "M": "mega",
    "G": "giga",
    "T": "tera",
    "P": "peta",
    "h": "hecto",
    "d": "deci",
    "c": "centi",
    "m": "milli",
    "µ": "micro",
    "μ": "micro",
    "n": "nano",
}
BASES = {  # each has its name, and the prefixes that are common with it; "-" stands for none
    "m": ("meter", "-kcdmµμn"),
    "g": ("gram", "-kmµμ"),
    "l": ("liter", "-hdcm"),
    "L": ("liter", "-m"),
    "s": ("second", "-mµμn"),
    "W": ("watt", "-kMGm"),
    "Wh": ("watt hour", "-kMGT"),
    "V": ("volt", "-km"),
    "A": ("ampere", "m"),
    "Ah": ("ampere hour", "-m"),
    "Hz": ("hertz", "-kMGT"),
    "B": ("byte", "kKMGTP"),
    "bps": ("bit per second", "-kKMGT"),
    "bit": ("bit", "kMG"),
    "J": ("joule", "kM"),
    "Pa": ("pascal", "-hkMm"),
    "eV": ("electronvolt", "-kMG"),
    "cal": ("calorie", "-k"),
    "Ω": ("ohm", "-kM"),
}
OTHERS = {
    "h": "hour",
    "hr": "hour",
    "hrs": "hour",
    "min": "minute",
    "mins": "minute",
    "sec": "second",
    "secs": "second",
    "yr": "year",
    "yrs": "year",
    "wk": "week",
    "wks": "week",
    "kgs": "kilogram",
    "Kg": "kilogram",
    "KG": "kilogram",
    "kms": "kilometer",
    "ft": "foot",
    "yd": "yard",
    "yds": "yard",
    "mi": "mile",
    "lb": "pound",
    "lbs": "pound",
    "oz": "ounce",
    "gal": "gallon",
    "tbsp": "tablespoon",
    "tsp": "teaspoon",
    "mph": "mile per hour",
    "kph": "kilometer per hour",
    "kmh": "kilometer per hour",
    "mpg": "mile per gallon",
    "rpm": "revolution per minute",
    "bpm": "beat per minute",
    "fps": "frame per second",
    "ppm": "part per million",
    "dpi": "dot per inch",
    "psi": "pound per square inch",
    "sq ft": "square foot",
    "sq. ft": "square foot",
    "sq. m": "square meter",
    "sq. mi": "square mile",
    "sq m": "square meter",
    "sq km": "square kilometer",
    "sq mi": "square mile",
    "sqft": "square foot",
    "ha": "hectare",
    "dB": "decibel",
    "px": "pixel",
    "MP": "megapixel",
    "hp": "horsepower",
    "cc": "cc",
    "kb": "kilobyte",
    "mb": "megabyte",
    "gb": "gigabyte",
    "tb": "terabyte",
    "KiB": "kibibyte",
    "MiB": "mebibyte",
    "GiB": "gibibyte",
    "TiB": "tebibyte",
    "kt": "knot",
    "kts": "knot",
    "°C": "degree Celsius",
    "°F": "degree Fahrenheit",
    "º": "degree",
    "° C": "degree Celsius",
    "° F": "degree Fahrenheit",
    "℃": "degree Celsius",
    "℉": "degree Fahrenheit",
    "°": "degree",
}
UNITS = {
    **{
        ("" if prefix == "-" else prefix) + base: PREFIXES.get(prefix, "") + name
        for base, (name, prefixes) in BASES.items()
        for prefix in prefixes
    },
    **OTHERS,
}
PER = {  # they stand after a slash
    **UNITS,
    "mo": "month",
    "hour": "hour",
    "day": "day",
    "d": "day",
    "night": "night",
    "week": "week",
    "month": "month",
    "year": "year",
    "minute": "minute",
    "second": "second",
    "mile": "mile",
    "person": "person",
    "user": "user",
    "seat": "seat",
    "head": "head",
    "unit": "unit",
    "item": "item",
    "piece": "piece",
    "page": "page",
    "token": "token",
    "share": "share",
    "dL": "deciliter",
    "dl": "deciliter",
}
INVARIABLE = ("hertz", "horsepower", "cc")
VULGAR = "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅐⅛⅜⅝⅞⅑⅒"
POWERS = {"²": "square", "2": "square", "^2": "square", "³": "cubic", "3": "cubic", "^3": "cubic"}
_QUANTITY = (
    rf"(?:(?P<whole>\d+)[ -]?)?(?:(?P<above>\d{{1,3}})/(?P<below>\d{{1,4}})|(?P<vulgar>[{VULGAR}]))"
    rf"|(?P<number>{NUMBER})"
)
_COUNTED = re.compile(
    r" (?:people|users|subscribers|followers|views|downloads|customers|jobs|homes|copies|children)\b"
)  # 1.5m people is an example
_POWER = r"(?:\^?[23]|[²³])"


def _per(match: Match) -> str:
    return f" per {PER[match[1]]}"


def _quantity(match: Match) -> tuple[str, bool] | None:
    """The number in words, and whether its unit is in the singular."""
    if match["number"]:
        return decimal(match["number"]), match["number"] == "1"
    part = vulgar(match["vulgar"]) if match["vulgar"] else fraction(int(match["above"]), int(match["below"]))
    if part is None:
        return None
    return (mixed(int(match["whole"]), part), False) if match["whole"] else (part, True)


def _measured(match: Match) -> str | None:
    quantity = _quantity(match)
    if quantity is None:
        return None
    words, one = quantity
    if match["unit"] == "m" and _COUNTED.match(match.string, match.end()):
        return None
    name = _raised(UNITS[match["unit"]], match["power"])
    one = one or match["hyphen"] == "-" or modifies(match)
    words = f"{words} {name if one else _many(name)}"
    if match["per"]:
        words += f" per {_raised(PER[match['per']], match['per_power'])}"
    return words


def _raised(name: str, power: str | None) -> str:
    """m²: square meter; s²: second squared."""
    if power is None:
        return name
    if name == "second":
        return f"{name} {'squared' if POWERS[power] == 'square' else 'cubed'}"
    return f"{POWERS[power]} {name}"


def _many(name: str) -> str:
    head, per, rest = name.partition(" per ")
    if head.startswith("degree"):
        return name.replace("degree", "degrees", 1)
    return f"{head if head.endswith(INVARIABLE) else plural(head)}{per}{rest}"


def _height(match: Match) -> str | None:
    feet, inches, mark = int(match[1]), int(match[2]), match[3]
    if inches > 12:
        return None
    if not mark:
        return f"{cardinal(feet)} foot {cardinal(inches)}"
    return f"{cardinal(feet)} {'foot' if feet == 1 else 'feet'} {cardinal(inches)} inch{'' if inches == 1 else 'es'}"


def _inches(match: Match) -> str | None:
    """27" monitor: no quotation can end here."""
    if match.string.count('"', 0, match.start()) % 2:
        return None
    quantity = _quantity(match)
    return quantity and f"{quantity[0]} {'inch' if quantity[1] or modifies(match) else 'inches'}"


def _after_power(match: Match) -> str | None:
    """The unit of a number that other rules read: 3 × 10^8 m/s, 10 000 kg."""
    if not re.search(r"(?:[eE^][+\u2212-]?\d+|\d[⁰¹²³⁴⁵⁶⁷⁸⁹]+| 000)$", text_before(match)):
        return None
    words = " " + _many(_raised(UNITS[match["unit"]], match["power"]))
    return f"{words} per {_raised(PER[match['per']], match['per_power'])}" if match["per"] else words


_UNIT = (
    rf"(?P<unit>{one_of(UNITS)})(?P<power>{_POWER})?"
    rf"(?:/(?P<per>{one_of(PER)})(?P<per_power>{_POWER})?)?(?![\w²³'’])(?!\.\w)(?:\.(?= [a-z]))?"
)
RULES: tuple[Rule, ...] = (
    rule(rf"{START}(\d{{1,2}}) ?(?:ft|feet|foot)\.? (\d{{1,2}}) ?(in|inch|inches)\b\.?(?!\w)", _height),
    rule(r"(?<!\w)(\d)['’′] ?(\d{1,2})(\"|”|″|''|(?!\w))(?![.,]?\d)", _height),
    rule(
        rf"{START}(?<![$€£])(?<!\d/)(?:{_QUANTITY})(?P<hyphen>[ -]?){_UNIT}",
        _measured,
    ),
    rule(rf"(?<=[\d⁰¹²³⁴⁵⁶⁷⁸⁹]) ?{_UNIT}", _after_power),
    rule(
        r"(?<![\w.,])(\d+(?:\.\d+)?) ?in\.(?= (?:long|wide|tall|thick|deep|high|across|by|of|x)\b| ?[x×])",
        lambda m: f"{decimal(m[1])} {'inch' if m[1] == '1' else 'inches'}",
    ),
    rule(rf"{START}(?:{_QUANTITY})(?:\"|″)(?=[\s.,;)]|$)", _inches),
    rule(rf"(?<=[\d$€£¢¥%kKMBnmDRPYF]) ?/ ?({one_of(PER)})(?![\w/])", _per),
)
