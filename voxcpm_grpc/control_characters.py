"""Characters that control a terminal, or the direction of the text around them."""

from __future__ import annotations

import re

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escaped(text: str) -> str:
    r"""The text with an escape sequence of Python, such as `\x1b`, for each control character."""
    return CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def escaped_json(text: str) -> str:
    r"""JSON text with an escape sequence of JSON, such as `\u009b`, for each control character inside strings."""
    return CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
