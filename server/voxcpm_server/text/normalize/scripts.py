"""The scripts of languages, and of letters."""

from __future__ import annotations

import unicodedata
from functools import lru_cache

LATIN, HAN = "LATIN", "CJK"
# Scripts are the first words of the Unicode names of letters.
SCRIPTS = {
    **dict.fromkeys(("ar", "fa", "ps", "ur"), ("ARABIC",)),
    **dict.fromkeys(("be", "bg", "kk", "ky", "mk", "mn", "ru", "tg", "uk"), ("CYRILLIC",)),
    **dict.fromkeys(("hi", "mr", "ne", "sa"), ("DEVANAGARI",)),
    **dict.fromkeys(("he", "yi"), ("HEBREW",)),
    **dict.fromkeys(("am", "ti"), ("ETHIOPIC",)),
    "bn": ("BENGALI",),
    "bo": ("TIBETAN",),
    "el": ("GREEK",),
    "gu": ("GUJARATI",),
    "hy": ("ARMENIAN",),
    "ja": ("CJK", "HIRAGANA", "KATAKANA"),
    "ka": ("GEORGIAN",),
    "km": ("KHMER",),
    "kn": ("KANNADA",),
    "ko": ("HANGUL", "CJK"),
    "lo": ("LAO",),
    "ml": ("MALAYALAM",),
    "my": ("MYANMAR",),
    "or": ("ORIYA",),
    "pa": ("GURMUKHI",),
    "si": ("SINHALA",),
    "sr": ("CYRILLIC", LATIN),
    "ta": ("TAMIL",),
    "te": ("TELUGU",),
    "th": ("THAI",),
    "zh": ("CJK", "BOPOMOFO"),
}
"""The scripts of languages by primary subtag; all others have Latin letters."""
KNOWN = {LATIN, *(script for scripts in SCRIPTS.values() for script in scripts)}


@lru_cache(maxsize=4096)
def script(char: str) -> str:
    """The script of a letter; empty for other characters and for scripts that no language here uses."""
    word = unicodedata.name(char, "").partition(" ")[0] if char.isalpha() else ""
    return word if word in KNOWN else ""
