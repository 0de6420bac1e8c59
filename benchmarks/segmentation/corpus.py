"""The marked texts, as values.

A file is a list of texts, separated by lines of `---`. The first line of a text is `# LANGUAGE: KIND`; the others are
its content, with real line breaks. `|` marks a required sentence end, immediately before the first character of the
next sentence. `¦` marks an acceptable cut: inside a quotation, after an interjection, before an emoji, before a clause
such as "he said" in Chinese, at the line break of a signature, between phrases of scripts without full stops. List
items, headings and paragraphs are sentences of their own, with or without a full stop.

The folder `languages` has a file for each language that the released models claim.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

FOLDER = Path(__file__).parent
FILES = ("development", "held_out")
LANGUAGES = tuple(sorted(path.stem for path in (FOLDER / "languages").glob("*.txt")))
REQUIRED, OPTIONAL = "|", "¦"
_HEADER = re.compile(r"# ([a-z]{2}): (\S.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text without its marks.

    required, optional: offsets of the first character of each sentence after a mark, in code points, ascending.
    """

    language: str
    kind: str
    text: str
    required: tuple[int, ...]
    optional: tuple[int, ...]

    @property
    def sentences(self) -> list[str]:
        """The text between required ends, without white space around it."""
        return [self.text[a:b].strip() for a, b in pairwise((0, *self.required, len(self.text)))]

    @property
    def stops(self) -> list[int]:
        """The offset behind the last visible character of each sentence."""
        return [len(self.text[:end].rstrip()) for end in (*self.required, len(self.text))]


def spoken_end(text: str) -> int:
    """The offset behind the last letter or digit; 0 without any."""
    return next((at for at in range(len(text), 0, -1) if text[at - 1].isalnum()), 0)


def load(name: str) -> list[Text]:
    """Read the texts of one of FILES. Raises ValueError, with the file and the line, if a text is malformed."""
    return _read(FOLDER / f"{name}.txt")


def load_language(language: str) -> list[Text]:
    """Read the texts of one of LANGUAGES. Raises ValueError, with the file and the line, if a text is malformed."""
    return _read(FOLDER / "languages" / f"{language}.txt")


def _read(path: Path) -> list[Text]:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name}, {error}") from error


def parse(source: str) -> list[Text]:
    """Parse the content of a file. Raises ValueError, with the line, if a text is malformed."""
    texts, line = [], 1
    for section in source.removesuffix("\n").split("\n---\n"):
        header, _, body = section.partition("\n")
        matched = _HEADER.fullmatch(header)
        if not matched or not body.strip():
            raise ValueError(f"line {line}: a text must begin with '# LANGUAGE: KIND' and have content")
        language, kind = matched.groups()
        texts.append(_unmarked(body, language, kind, line + 1))
        line += section.count("\n") + 2
    return texts


def _unmarked(body: str, language: str, kind: str, line: int) -> Text:
    """The text of a body that begins on `line`."""
    plain: list[str] = []
    marks: dict[str, list[int]] = {REQUIRED: [], OPTIONAL: []}
    for at, char in enumerate(body):
        if char not in marks:
            plain.append(char)
            continue
        before, after = body[at - 1 : at], body[at + 1 : at + 2]
        newlines = body.count("\n", 0, at)
        here = f"line {line + newlines}: {char}"
        if not before or not after or after.isspace() or after in marks:
            raise ValueError(f"{here} is not directly before the first character of a sentence")
        if unicodedata.category(before)[0] in "LMN":
            raise ValueError(f"{here} is inside a word or directly after it")
        marks[char].append(len(plain))
    return Text(
        language=language,
        kind=kind,
        text="".join(plain),
        required=tuple(marks[REQUIRED]),
        optional=tuple(marks[OPTIONAL]),
    )
