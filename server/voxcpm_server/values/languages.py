"""The names that callers have for languages, and the tags by which the server knows them."""

from __future__ import annotations

import re

import langcodes
from langcodes.data_dicts import MACROLANGUAGES

from voxcpm_grpc.errors import InvalidRequest

MAX_LANGUAGE = 35
UNTOLD = ("", "auto", "mul", "und")  # callers who leave the choice to the server send these, and so does BCP 47
_TAG = re.compile(r"([A-Za-z]{2,3})(-[A-Za-z0-9]{1,8})*")
_NAME = re.compile(r"(?![\x00-\x7f]{,3}$)\w.*[^-]")  # the library also finds names in a letter or two
_LOCALE = re.compile(r"[.@].*")  # a POSIX locale ends with its encoding and its variant
_NO_COUNTRY = re.compile(r"AA|Q[M-Z]|X(?!K)[A-Z]|ZZ")  # ISO 3166 assigns these codes to nobody
_NORWEGIAN = ("nb", "nn")  # no other language has two written standards with codes of two letters


def read_language(name: str, field: str = "language") -> str:
    """The primary tag of a language, such as `pt`; empty if the caller leaves it to the script. Raises InvalidRequest.

    name: a BCP 47 tag, an ISO 639 code, a POSIX locale, or the name of the language in English or by its speakers
    """
    if len(name) > MAX_LANGUAGE:
        raise _refusal(name, field)
    tag = _LOCALE.sub("", name.strip()).replace("_", "-")
    if tag.lower() in UNTOLD:
        return ""
    match = _TAG.fullmatch(tag)
    language = _registered(match[1]) if match else _named(tag)
    if not language:
        raise _refusal(name, field, match[1].upper() if match else "")
    return language


def primary(tag: str) -> str:
    """The primary tag of a language that a model claims to speak."""
    match = _TAG.fullmatch(tag)
    return (_registered(match[1]) if match else "") or tag.partition("-")[0].lower()


def _registered(subtag: str) -> str:
    """The tag by which the server knows an ISO 639 code; empty if it is none.

    It is the shortest one, of the macrolanguage if the code is of three letters: `zh` for `cmn`, `yue` and `zho`.
    """
    found = langcodes.Language.get(subtag.lower())  # `get` keeps what it is asked for, so only codes reach it
    if not found.language or not langcodes.Language.make(language=found.language).is_valid():
        return ""
    language = found.language
    if len(language) == 3 or language in _NORWEGIAN:
        language = MACROLANGUAGES.get(language, language)
    return "tl" if language == "fil" else language  # Unicode prefers the code of three letters, models do not


def _named(name: str) -> str:
    if not _NAME.fullmatch(name):
        return ""
    try:
        return _registered(str(langcodes.find(name.replace("-", " ")).language))
    except LookupError:
        return ""


def _of_country(code: str) -> str:
    """The language that most people of a country speak, such as `ja` for JP; empty if there is no such country."""
    if len(code) != 2 or _NO_COUNTRY.fullmatch(code):
        return ""
    country = langcodes.Language.make(territory=code)
    return _registered(str(country.maximize().language)) if country.is_valid() else ""


def _refusal(name: str, field: str, country: str = "") -> InvalidRequest:
    spoken = _of_country(country)
    hint = f"; {country} is a country, and the tag of its language is {spoken}" if spoken else ""
    return InvalidRequest(
        f"language is {name[:MAX_LANGUAGE]!r}; it must be a BCP 47 tag such as de or pt-BR, of at most {MAX_LANGUAGE} "
        f"characters, or the name of a language such as German{hint}",
        field=field,
    )
