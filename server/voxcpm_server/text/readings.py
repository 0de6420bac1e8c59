"""Normalised text: wetext, as in the official package, with rules for what it reads wrongly or cannot read."""

from __future__ import annotations

import logging
import re
from functools import cache
from typing import Any

from voxcpm_server.text import chinese, english
from voxcpm_server.text.emoji import without_emoji

log = logging.getLogger(__name__)
LANGUAGES = ("en", "zh")
_HAN = re.compile(r"[\u3400-\u9fff\uf900-\ufaff]")
_CHINESE_MARKS = re.compile(r"[\u3001-\u3011\uff01-\uff60]")
_KANA_OR_HANGUL = re.compile(r"[\u3041-\u30ff\u1100-\u11ff\uac00-\ud7a3]")
_THOUSANDS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'"})


def normalized(text: str, language: str = "") -> str:
    """The text as a reader says it. Blocks for some milliseconds, and loads the libraries at the first call.

    language: `en`, `zh` or empty for the language of the script. Text in another language only loses marks and emoji.
    """
    plain = " ".join(without_emoji(text).translate(_QUOTES).split())
    language = language_of(plain, language)
    if language not in LANGUAGES or not plain:
        return plain
    if language == "zh":
        plain = _THOUSANDS.sub(lambda m: m[0].replace(",", ""), plain)
        return chinese.finished(_read("zh", chinese.prepared(plain)))
    engine = _inflect()
    return english.without_digits(_read("en", english.prepared(plain, _words)), engine)


def language_of(text: str, language: str = "") -> str:
    """The language whose rules a text takes: that of its script, or the given one if the script does not tell."""
    if _KANA_OR_HANGUL.search(text):
        return language if language not in LANGUAGES else ""
    if language and language != "en":
        return language
    return "zh" if _HAN.search(text) or _CHINESE_MARKS.search(text) else "en"


def _read(language: str, text: str) -> str:
    """The text in the words of wetext, or as it is if wetext has no reading of it."""
    try:
        return str(_wetext(language).normalize(text)).replace('\\"', '"').replace("\\\\", "\\")
    except Exception as error:  # wetext fails by assertions and errors of its own, for example for "#1"
        log.debug("wetext did not read %d characters: %r", len(text), error)
        return text


@cache
def _wetext(language: str) -> Any:
    from wetext import Normalizer

    return Normalizer(lang=language, operator="tn", remove_erhua=language == "zh")


@cache
def _inflect() -> Any:
    import inflect

    return inflect.engine()


def _words(number: int) -> str:
    return str(_inflect().number_to_words(number)).replace("-", " ").replace(",", "")
