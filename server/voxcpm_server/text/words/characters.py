"""Properties of characters and scripts, from Unicode's tables."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import regex

from voxcpm_grpc.text.characters import INVISIBLE, readable

_CONTROL = regex.compile(r"(?V1)[\p{Cc}\p{Cs}--[\t-\r\x1c-\x1f\x85]]")
_SPEAKABLE = re.compile(rf"(?!{INVISIBLE.pattern})[^\W_]")
_SPACELESS = regex.compile(r"(?V1)[\p{ea=W}\p{ea=F}\p{ea=H}--\p{Script=Hangul}--\p{Emoji_Presentation}]")


def spoken(text: str) -> str:
    """The text as the model receives it: no control or invisible characters, single spaces, none at the ends."""
    return " ".join(without_control(readable(text)).split())


def without_control(text: str) -> str:
    """The text without control characters other than white space."""
    return _CONTROL.sub("", text)


def is_speakable(text: str) -> bool:
    """True if the text has a letter or a digit of any script."""
    return _SPEAKABLE.search(text) is not None


@lru_cache(maxsize=8192)
def is_spaceless(char: str) -> bool:
    """True if the script of a character has no spaces between sentences (Chinese, Japanese)."""
    return not char.isascii() and _SPACELESS.match(char) is not None


def is_mark(char: str) -> bool:
    """True for marks that belong to the letter before them."""
    return not char.isascii() and unicodedata.category(char)[0] == "M"


def is_joined(text: str, cut: int) -> bool:
    """True if a cut would fall inside one visible character (grapheme cluster)."""
    before, after = text[cut - 1], text[cut]
    if unicodedata.category(after)[0] == "M" or after in "\u200c\u200d\u0e33\u0eb3\uff9e\uff9f" or before == "\u200d":
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f" or before + after == "\r\n":
        return True  # these are skin tones, tag sequences and the line break of Windows
    if _is_flag_half(before) and _is_flag_half(after):
        run = cut - len(text[:cut].rstrip("".join(map(chr, range(0x1F1E6, 0x1F200)))))
        return run % 2 == 1
    if unicodedata.combining(before) == 9 and after.isalpha():
        return True  # a virama joins the next consonant
    if "\u1160" <= after <= "\u11ff" or "\ud7b0" <= after <= "\ud7fb":
        return True  # decomposed Hangul has these vowels and finals
    return ("\u1100" <= before <= "\u115f" or "\ua960" <= before <= "\ua97c") and (
        "\u1100" <= after <= "\u115f" or "\ua960" <= after <= "\ua97c" or "\uac00" <= after <= "\ud7a3"
    )


def _is_flag_half(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"
