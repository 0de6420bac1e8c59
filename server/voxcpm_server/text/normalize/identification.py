"""The language in which a segment is read: by its script, by the caller, and for Latin script by its words."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache, lru_cache
from typing import Any

from voxcpm_server.text.normalize.number_rules import LANGUAGES
from voxcpm_server.text.normalize.scripts import HAN, LATIN, SCRIPTS, script

READ = ("en", "zh", *LANGUAGES)
LATIN_WORDS_FOR_ONE = 3  # words of another script, or runs of Chinese characters
UNLIKELY = 0.05  # a text is not English below this probability
LIKELIER, LIKELIER_WITH_ACCENTS = 5, 4  # a text is not English if another language is so much likelier
TELLING_LETTERS, TELLING_WORDS = 3, 2  # texts with fewer letters or words, such as units and names, tell little
LIKELY = 0.5  # the language of a text that tells little needs this probability
_KANA_OR_HANGUL = ("HIRAGANA", "KATAKANA", "HANGUL")
_CHINESE_MARKS = re.compile(r"[\u3001-\u3011\uff01-\uff60]")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")


def language_of(text: str, language: str = "") -> str:
    """The language whose rules read a text: `en`, `zh`, a key of LANGUAGES, or empty for a text that keeps its numbers.

    Words of other scripts than Latin and Chinese decide, and then Chinese characters, unless there are three Latin
    words for each word or run of them, and as many as Chinese characters. What is left is read in the caller's
    language, if that is written so, or in English unless its words show another language.

    language: that of the caller, a primary tag; empty if there is none
    """
    words = _WORD.findall(text)
    scripts = Counter(_script(char) for word in words for char in word if char.isalpha())
    first = [_script(word[0]) for word in words]
    latin = first.count(LATIN)
    written = SCRIPTS.get(language, (LATIN,)) if language else ()
    if other := _other(scripts):
        if latin < LATIN_WORDS_FOR_ONE * (len(words) - latin):
            most = max(other, key=lambda name: other[name])
            return _known(language if most in written else _only_language(most))
    elif han := scripts[HAN]:
        if HAN in written:
            return _known(language)
        if latin < max(han, LATIN_WORDS_FOR_ONE * first.count(HAN)):
            return "zh"
    if language == "zh" and latin < LATIN_WORDS_FOR_ONE:
        return "zh"
    if language and language != "zh":
        return _known(language) if LATIN in written or not latin else ""
    if latin < LATIN_WORDS_FOR_ONE and _CHINESE_MARKS.search(text):
        return "zh"
    return "en" if _may_be_english([word for word, name in zip(words, first, strict=True) if name == LATIN]) else ""


@lru_cache(maxsize=4096)
def _script(char: str) -> str:
    """The script of a letter, also in another width; "?" for scripts that no language here uses."""
    plain = unicodedata.normalize("NFKC", char)[0]
    return HAN if plain == "々" else script(plain) or "?"


def _other(scripts: Counter[str]) -> dict[str, int]:
    """The letters of scripts other than Latin and Chinese, without a lone one, which may be a sign such as μ."""
    other = {name: count for name, count in scripts.items() if name not in (LATIN, HAN)}
    is_sign = sum(other.values()) == 1 and not any(name in _KANA_OR_HANGUL for name in other)
    return {} if is_sign and len(scripts) > 1 else other


def _only_language(name: str) -> str:
    """The language of a script that belongs to no other one."""
    languages = [language for language, scripts in SCRIPTS.items() if name in scripts]
    return languages[0] if len(languages) == 1 else ""


def _known(language: str) -> str:
    return language if language in READ else ""


def _may_be_english(words: list[str]) -> bool:
    text = unicodedata.normalize("NFKC", " ".join(words))
    telling = [word for word in words if len(word) >= TELLING_LETTERS and not word.isupper()]
    ranked: list[tuple[str, float]] = _identifier().rank(text)
    english, best = dict(ranked)["en"], ranked[0][1]
    if len(telling) < TELLING_WORDS and text.isascii():
        return english == best or best < LIKELY
    likelier = LIKELIER if text.isascii() else LIKELIER_WITH_ACCENTS
    return english >= UNLIKELY and best < likelier * english


@cache
def _identifier() -> Any:
    """Tells the languages with Latin script that texts are told apart by."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier: Any = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    identifier.set_languages(
        ("da", "de", "en", "es", "fi", "fr", "id", "it", "ms", "nl", "no", "pl", "pt", "sv", "sw", "tl", "tr", "vi")
    )
    return identifier
