"""Characters that control a terminal, and those that nobody sees or speaks."""

from __future__ import annotations

import re
import unicodedata

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    r"""The text with an escape sequence of Python, such as `\x1b`, for each control character."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escaped_json(text: str) -> str:
    r"""JSON text with an escape sequence of JSON, such as `\u009b`, for each control character inside strings."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


# Unicode 17 lists these characters as Default_Ignorable_Code_Point, for which the standard library has no function.
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_JOINERS = "\u200c\u200d"
_OF_EMOJI = re.compile("[\u200d\ufe0e\ufe0f\U000e0020-\U000e007f]")
_VIRAMA = 9  # viramas have this canonical combining class


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
    # The characters that were left out may have kept marks from their letters.
    return unicodedata.normalize("NFC", kept)


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
