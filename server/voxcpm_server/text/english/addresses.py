"""E-mail addresses, URLs, names of hosts and files, and handles."""

from __future__ import annotations

import re

from voxcpm_server.text.english.numbers import in_pairs
from voxcpm_server.text.english.rules import Match, Rule, listed, one_of, rule

TOP_LEVEL = listed(
    "com org net edu gov io ai dev app co info biz me tv us uk ca de fr eu jp cn in au nl ch it es se no pl br ru xyz"
)
SUFFIXES = listed(
    "py js ts jsx tsx md txt pdf doc docx xls xlsx ppt pptx csv tsv json yaml yml toml xml html htm css zip gz "
    "tar exe dmg png jpg jpeg gif svg webp mp3 mp4 wav flac ogg mov avi log ini cfg conf sh bat sql db php rb rs "
    "go cpp java ipynb"
)
MARKS = {
    ".": "dot",
    "/": "slash",
    "@": "at",
    "-": "dash",
    "_": "underscore",
    ":": "colon",
    "?": "question mark",
    "=": "equals",
    "&": "and",
    "#": "hash",
    "+": "plus",
    "~": "tilde",
    "%": "percent",
    "*": "star",
    "$": "dollar",
    "!": "exclamation mark",
    ",": "comma",
    ";": "semicolon",
}
_HOST = r"(?:[\w-]+\.)+"
_PATH = r"(?::\d+)?(?:[/?#](?:[\w/?#=&%~+.,:;@!$*-]*[\w/=#~+])?)?"


def _read(text: str) -> str:
    """Letters as they are, digits in words, and each mark by its name."""
    parts: list[str] = re.findall(r"[^\W\d_]+|\d+|[^\w\s]|_", text)
    return " ".join(in_pairs(part) if part.isdecimal() else MARKS.get(part, part) for part in parts)


def _url(match: Match) -> str:
    """An address without its scheme, which nobody reads aloud, and without an empty path."""
    return _read(match["rest"].removesuffix("/"))


RULES: tuple[Rule, ...] = (
    rule(r"(?<![\w.+-])[\w.+-]*\w@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}(?!\w)", lambda m: _read(m[0])),
    rule(rf"(?<!\w)(?:https?|ftp|wss?)://(?P<rest>[\w.-]+{_PATH}(?<![.,;:!?]))", _url, re.IGNORECASE),
    rule(rf"(?<![\w.@])(?P<rest>www\.{_HOST}[a-z]{{2,}}{_PATH})", _url, re.IGNORECASE),
    rule(rf"(?<![\w.@])(?P<rest>{_HOST}{one_of(TOP_LEVEL)}(?![\w-])(?!\.\w){_PATH})", _url),
    rule(rf"(?<![\w/.])localhost:\d+{_PATH[8:]}", lambda m: _read(m[0])),
    rule(rf"(?<![\w.])[\w-]+(?:\.[\w-]+)*\.{one_of(SUFFIXES)}(?!\w)(?!\.\w)", lambda m: _read(m[0])),
    rule(r"(?<![\w.@])@(?=[A-Za-z]\w*)(\w+)", lambda m: f"at {_read(m[1])}"),
    rule(r"(?<![\w#&])#(?=[A-Za-z]\w)(\w+)", lambda m: f"hashtag {_read(m[1])}"),
)
