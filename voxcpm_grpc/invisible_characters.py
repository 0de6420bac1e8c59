"""Characters that are neither seen nor spoken, such as soft hyphens, zero-width spaces and marks of direction."""

from __future__ import annotations

import re
import unicodedata

# Default_Ignorable_Code_Point of Unicode 17, for which the standard library has no function.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_JOINERS = "\u200c\u200d"
_OF_EMOJI = re.compile("[\u200d\ufe0e\ufe0f\U000e0020-\U000e007f]")
_VIRAMA = 9  # its canonical combining class


def readable(text: str) -> str:
    """The text as its characters are seen: composed (NFC), without invisible characters.

    Joiners stay where they spell, by the rule of IDNA (RFC 5892): after a virama, and between Arabic letters. What
    joins or selects emoji stays behind a symbol.
    """
    text = unicodedata.normalize("NFC", text)
    if not INVISIBLE.search(text):
        return text
    kept = ""
    for at, char in enumerate(text):
        if not INVISIBLE.match(char) or _counts(kept[-1:], char, text[at + 1 : at + 2]):
            kept += char
    return unicodedata.normalize("NFC", kept)  # what was left out may have kept marks from their letters


def _counts(before: str, char: str, after: str) -> bool:
    """True if an invisible character changes how the text is read."""
    if not before:
        return False
    between_arabic = _is_arabic(before) and _is_arabic(after)
    if char in _JOINERS and (between_arabic or unicodedata.combining(before) == _VIRAMA):
        return True
    is_emoji = unicodedata.category(before)[0] == "S" or INVISIBLE.match(before) is not None
    return is_emoji and _OF_EMOJI.match(char) is not None


def _is_arabic(char: str) -> bool:
    return unicodedata.bidirectional(char or " ") == "AL"
