"""The marks at the start of a line, which decide its kind.

A mark takes the characters of its line, from its own first one, and says after each whether it is still possible. Until
then they wait. An empty character is the end of the text.
"""

from __future__ import annotations

from enum import Enum, auto

from voxcpm_server.text.markup.constructs import Char, Construct, Verdict
from voxcpm_server.text.markup.output import HOLD

LONGEST_LINE = 2000  # characters of a row of a table, or of a definition
BULLETS = frozenset("-*+")
OTHER_BULLETS = frozenset("•◦‣▪●")  # they need no space behind them


class Heading(Construct):
    """`#` to `######` and a space; the text of the heading follows."""

    def take(self, char: str) -> Verdict:
        if char == "#":
            return Verdict.MORE
        if char in (" ", "\t"):
            return Verdict.DONE
        return Verdict.DONE_BEFORE if char in ("\n", "\r") else Verdict.FAILED

    limit = 6


class Fence(Construct):
    """Three or more backticks or tildes, and the language of the code, which follows in the next line."""

    limit = LONGEST_LINE

    def __init__(self) -> None:
        super().__init__()
        self._mark = ""
        self._count = 0
        self._in_run = True

    def take(self, char: str) -> Verdict:
        self._mark = self._mark or char
        if char == self._mark and self._in_run:
            self._count += 1
            return Verdict.MORE
        self._in_run = False
        if not char or self._count < 3 or char == self._mark == "`":
            return Verdict.FAILED
        return Verdict.DONE if char == "\n" else Verdict.MORE

    def is_closed_by(self, line: str) -> bool:
        """True if a line ends the code."""
        bare = line.strip()
        return len(bare) >= self._count and not bare.strip(self._mark)


class Marks(Construct):
    """A line of equal marks, with spaces between them: a bullet, a rule, the underline of a heading.

    in_paragraph: True directly behind a line of text, which may be underlined
    is_item: True for a bullet, which has the first two characters at most
    is_delimiter: True for the line of a table below its header
    """

    limit = LONGEST_LINE

    def __init__(self, *, in_paragraph: bool) -> None:
        super().__init__()
        self._in_paragraph = in_paragraph
        self._mark = ""
        self._count = self._length = 0
        self._is_bullet = self._has_pipe = self._has_dash = False
        self.is_item = self.is_delimiter = False

    def take(self, char: str) -> Verdict:
        self._length += 1
        if not self._mark:
            self._mark = char
            self.is_delimiter = char == ":"
        if char in ("", "\n"):
            return self._end(char)
        if self.is_delimiter:
            return self._take_delimiter(char)
        if char == self._mark:
            self._count += 1
            if self._mark in OTHER_BULLETS:
                self.is_item = True
                return Verdict.DONE
            return Verdict.MORE
        if char.isspace():
            self._is_bullet = self._is_bullet or (self._length == 2 and self._mark in BULLETS)
            return Verdict.MORE
        if self._is_bullet:
            self.is_item = True
            return Verdict.DONE_BEFORE
        if char in "|:" and self._mark == "-":
            self.is_delimiter = self._has_dash = True
            return self._take_delimiter(char)
        return Verdict.FAILED

    def _take_delimiter(self, char: str) -> Verdict:
        self._has_pipe = self._has_pipe or char == "|"
        self._has_dash = self._has_dash or char == "-"
        return Verdict.MORE if char in ":-|" or char.isspace() else Verdict.FAILED

    def _end(self, char: str) -> Verdict:
        if self.is_delimiter:
            is_done = self._has_pipe and self._has_dash
        else:
            is_rule = self._count >= 3 and self._mark in "-*_"
            is_done = is_rule or (self._in_paragraph and self._mark in "-=") or (self._is_bullet and self._count == 1)
        if not is_done:
            return Verdict.FAILED
        return Verdict.DONE if char else Verdict.DONE_BEFORE


class Row(Construct):
    """A row of a table, up to the end of its line."""

    limit = LONGEST_LINE

    def take(self, char: str) -> Verdict:
        return Verdict.DONE_BEFORE if char in ("", "\n") else Verdict.MORE


class Role(Enum):
    """The use of a label at the start of a line."""

    DEFINITION = auto()  # the target of a link follows; the label and its line are done
    FOOTNOTE = auto()  # its text follows
    ALERT = auto()  # a quotation begins with `[!NOTE]`
    TASK = auto()


class Label(Construct):
    """A label between brackets at the start of a line: of a definition, a footnote or an alert, or the box of a task.

    role: once it is done
    """

    limit = LONGEST_LINE

    def __init__(self, *, in_item: bool, in_quotation: bool) -> None:
        super().__init__()
        self._in_item = in_item
        self._in_quotation = in_quotation
        self._label = ""
        self._state = self._in_label
        self.role = Role.DEFINITION

    def take(self, char: str) -> Verdict:
        return self._state(char)

    def _in_label(self, char: str) -> Verdict:
        if char in ("", "\n") or len(self._label) > HOLD:
            return Verdict.FAILED
        self._label += char
        if char == "]":
            self._state = self._behind_label
        return Verdict.MORE

    def _behind_label(self, char: str) -> Verdict:
        if char == " " and self._in_item and self._label in ("[ ]", "[x]", "[X]"):
            self.role = Role.TASK
            return Verdict.DONE
        if (
            self._in_quotation
            and (not char or char.isspace())
            and self._label[:2] == "[!"
            and self._label[2:-1].isalpha()
        ):
            self.role = Role.ALERT
            return Verdict.DONE_BEFORE
        if char != ":":
            return Verdict.FAILED
        if self._label.startswith("[^"):
            self.role = Role.FOOTNOTE
            return Verdict.DONE
        self._state = self._before_target
        return Verdict.MORE

    def _before_target(self, char: str) -> Verdict:
        if char in ("", "\n"):
            return Verdict.FAILED
        if not char.isspace():
            self._state = self._in_target
        return Verdict.MORE

    def _in_target(self, char: str) -> Verdict:
        if char in ("", "\n"):
            return self._end(char)
        if char.isspace():
            self._state = self._behind_target
        return Verdict.MORE

    def _behind_target(self, char: str) -> Verdict:
        if char in ("", "\n"):
            return self._end(char)
        if char in "\"'(":
            self._state = self._in_title
        return Verdict.MORE if char in "\"'(" or char.isspace() else Verdict.FAILED

    def _in_title(self, char: str) -> Verdict:
        return self._end(char) if char in ("", "\n") else Verdict.MORE

    def _end(self, char: str) -> Verdict:
        return Verdict.DONE if char else Verdict.DONE_BEFORE


class Title(Construct):
    """The title of a link in a line of its own, behind the line of its definition."""

    limit = LONGEST_LINE

    def __init__(self) -> None:
        super().__init__()
        self._text = ""

    def take(self, char: str) -> Verdict:
        if char not in ("", "\n"):
            self._text += char
            return Verdict.MORE
        title = self._text.rstrip()
        if len(title) < 2 or title[-1] != title[0]:
            return Verdict.FAILED
        return Verdict.DONE if char else Verdict.DONE_BEFORE


def cells(row: list[Char]) -> list[list[Char]]:
    """The cells of a row, without white space around them and without the empty ones at its ends."""
    parts: list[list[Char]] = [[]]
    escaped = False
    for char, end in row:
        if char == "|" and not escaped:
            parts.append([])
        elif char == "|":
            parts[-1][-1] = char, end
        else:
            parts[-1].append((char, end))
        escaped = char == "\\" and not escaped
    bare = [_stripped(part) for part in parts]
    first = 0 if bare[0] else 1
    last = len(bare) if bare[-1] else -1
    return bare[first:last]


def is_delimiter(row: list[list[Char]]) -> bool:
    """True for the cells of the line of a table below its header."""
    texts = ["".join(char for char, _ in cell) for cell in row]
    return bool(texts) and all("-" in text and not text.strip(":-") for text in texts)


def _stripped(cell: list[Char]) -> list[Char]:
    visible = [at for at, (char, _) in enumerate(cell) if not char.isspace()]
    return cell[visible[0] : visible[-1] + 1] if visible else []
