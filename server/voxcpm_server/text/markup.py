"""Text without the marks that nobody reads aloud: Markdown, HTML tags and emoji."""

from __future__ import annotations

import re

_CODE_BLOCK = re.compile(r"```.*?```", re.DOTALL)
_CODE = re.compile(r"`([^`]*)`")
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]+\)")
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_BULLET = re.compile(r"^\s*[-*+•]\s+")
_HEADING = re.compile(r"^\s*#{1,6}\s+")
_QUOTE = re.compile(r"^\s*>\s+")
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_EMPHASIS = re.compile(r"(\*{1,3}|(?<![\w*])_{1,3})(?=\S)(.+?)(?<=\S)\1(?![\w*])")


def without_markup(text: str) -> str:
    """The text of one line without Markdown and tags. Blocks of code, images and link targets are left out, as they
    cannot be read.
    """
    for pattern in (_CODE_BLOCK, _IMAGE):
        text = pattern.sub("", text)
    text = _LINK.sub(r"\1", _CODE.sub(r"\1", text))
    for pattern in (_BULLET, _QUOTE, _TAG, _HEADING):
        text = pattern.sub("", text)
    return _EMPHASIS.sub(r"\2", text).strip()


def without_emoji(text: str) -> str:
    """The text without emoji, and without what joins them."""
    import regex

    return regex.sub(r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F)[\p{EMod}\u200D\uFE0F]*", "", text)
