"""Text without emoji, which nobody reads aloud."""

from __future__ import annotations


def without_emoji(text: str) -> str:
    """The text without emoji, and without what joins them."""
    import regex

    return regex.sub(r"(?:\p{Emoji_Presentation}|\p{Emoji}\uFE0F)[\p{EMod}\u200D\uFE0F]*", "", text)
