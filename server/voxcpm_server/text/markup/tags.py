"""The tags of HTML and of language models."""

from __future__ import annotations

import re
from dataclasses import dataclass


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


SILENT = _words("math pre reasoning script style svg template think thinking")
"""Elements whose content is not spoken."""
BLOCKS = _words(
    """
    address article aside blockquote body caption center dd details dialog div dl dt fieldset figcaption figure footer
    form h1 h2 h3 h4 h5 h6 head header hr html legend li main nav ol option p section summary table tbody tfoot thead
    title tr ul
    """
)
"""Elements that end a paragraph."""
CELLS = _words("td th")
INLINE = _words(
    """
    a abbr b big br cite code del em font i img input ins kbd label mark q s samp small span strike strong sub sup time
    tt u var wbr
    """
)
"""Elements that may begin directly behind a word."""
_ADDRESS = re.compile(r"<(?:[A-Za-z][A-Za-z0-9+.-]{1,31}:[^\s<>]*|[^\s<>@]+@[\w.-]+)>")
_TAG = re.compile(
    r"<(?P<close>/?)(?P<name>[A-Za-z][\w:-]*)(?P<attributes>\s[^<>]*|(?:\s[^\"']*=(?:\"[^\"]*\"|'[^']*'))*)/?>"
)
_DECLARATION = re.compile(r"<[!?][A-Za-z\[][^<>]*>")


@dataclass(frozen=True, slots=True)
class Tag:
    """A tag.

    name: in lower case; empty for declarations and for addresses
    is_address: True if its content is text
    begins_cell: True for the start of a cell of a table
    is_silent: True if everything up to its end tag is left out
    """

    name: str = ""
    is_address: bool = False
    begins_cell: bool = False
    is_silent: bool = False

    @property
    def ends_paragraph(self) -> bool:
        return self.name in BLOCKS or self.name in SILENT


def parsed(text: str, before: str) -> Tag | None:
    """The tag that a text from `<` to `>` is; None if it is none, such as the type in `List<String>`.

    before: the character before it
    """
    if _ADDRESS.fullmatch(text):
        return Tag(is_address=True)
    if _DECLARATION.fullmatch(text):
        return Tag()
    found = _TAG.fullmatch(text)
    if found is None:
        return None
    name, closes = found["name"].lower(), bool(found["close"])
    if before.isalnum() and not closes and name not in INLINE | BLOCKS | CELLS | SILENT:
        return None
    return Tag(
        name,
        begins_cell=name in CELLS and not closes,
        is_silent=name in SILENT and not closes and not text.endswith("/>"),
    )
