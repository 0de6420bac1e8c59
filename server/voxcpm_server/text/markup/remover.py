"""The lines of text with Markdown: which are read, and which are left out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from voxcpm_server.text.markup.constructs import Char, Construct, Verdict
from voxcpm_server.text.markup.inline import Inline
from voxcpm_server.text.markup.lines import (
    BULLETS,
    OTHER_BULLETS,
    Fence,
    Heading,
    Label,
    Marks,
    Role,
    Row,
    Title,
    cells,
    is_delimiter,
)
from voxcpm_server.text.markup.output import Output, Piece, Token

CODE_INDENT = 4
LONGEST_NUMBER = 9  # digits of a list item
LONGEST_CLOSER = 200  # characters of a line of code that are compared with its fence


class MarkupRemover:
    """Removes Markdown and HTML from the text of one turn.

    Pieces of plain text leave as soon as they are certain. At most HOLD characters of text wait for the other half of a
    mark, and a row of a table or a definition waits for its end.
    """

    def __init__(self) -> None:
        self._output = Output()
        self._inline = Inline(self._output)
        self.end = 0  # the caller's text so far ends here
        self._input: deque[Char] = deque()
        self._read: Callable[[str, int], None] = self._line_start
        self._mark: Construct | None = None  # it stands at the start of the line
        self._held: list[Char] = []  # characters of the mark
        self._indent = self._quotes = 0  # columns and quotations of this line
        self._quoted = 0  # the line before was in so many quotations
        self._items: list[int] = []  # columns of the text of the list items around
        self._in_item = False  # the reader is directly behind the mark of an item
        self._in_paragraph = False  # the reader is directly behind a line of text
        self._in_heading = False
        self._closing: list[Char] = []  # these marks may end a heading
        self._digits = 0  # so many digits begin the line
        # The last line has them, with what they are if it is the header of a table.
        self._pipes: list[tuple[Token, str]] = []
        self._ends_with_pipe = False
        self._may_have_title = False  # the reader is directly behind the definition of a link
        self._has_rows = False  # a table has begun
        self._has_bare_rows = False  # its rows begin without a mark
        self._fence: Fence | None = None  # it surrounds the code
        self._code = ""  # it is the line of code

    @property
    def held(self) -> str:
        """The text that waits, as it is written."""
        marks = "".join(char for char, _ in (*self._held, *self._closing))
        return self._output.held + self._inline.held + marks

    def feed(self, text: str) -> list[Piece]:
        """Take more text; returns the pieces that are now certain."""
        pieces: list[Piece] = []
        for char in text:
            self.end += 1
            self._input.append((char, self.end))
            self._work()
            pieces += self._output.take()
        return pieces

    def let_go(self) -> list[Piece]:
        """All text that waits, as it is written, when no more follows for a while."""
        if isinstance(self._mark, Row | Label):
            self._step("", self.end)
            self._work()
        self._take_closing()
        self._settle_pipes()
        self._inline.let_go()
        self._output.end_skipped()
        return list(self._output.take(last=True))

    def _work(self) -> None:
        while self._input:
            char, end = self._input.popleft()
            if self._mark is None and (self._inline.leaves_out or self._inline.is_maths):
                self._pass(char, end)
            else:
                self._read(char, end)

    def _pass(self, char: str, end: int) -> None:
        """Read a character of a passage in which lines have no marks. A blank line ends maths."""
        if char == "\n" and self._inline.is_maths and self._output.at_line_start:
            self._inline.end_block()
        self._inline.feed(char, end)
        if not self._inline.leaves_out and not self._inline.is_maths and self._output.at_line_start:
            self._next_line()

    def _next_line(self) -> None:
        self._read = self._line_start
        self._mark = None
        self._indent = self._quotes = self._digits = 0
        self._in_item = False

    def _settle_pipes(self, *, is_text: bool = True) -> None:
        for pipe, separator in self._pipes:
            if pipe.in_doubt:
                pipe.settle(is_text=is_text)
                pipe.text = pipe.text or separator
        if self._ends_with_pipe and not is_text:
            self._pipes[-1][0].text = ""
        self._pipes.clear()
        self._ends_with_pipe = False

    def _break(self, end: int) -> None:
        """End the paragraph."""
        self._settle_pipes()
        self._inline.end_block()
        self._output.break_lines(end)
        self._in_paragraph = False

    # ---- the start of a line

    def _line_start(self, char: str, end: int) -> None:
        if self._mark is not None:
            self._step(char, end)
        elif char == "\n":
            self._blank(end)
        elif char.isspace():
            self._indent += 4 - self._indent % 4 if char == "\t" else 1
        elif char == ">":
            self._quotes += 1
            self._indent = 0
        else:
            self._first(char, end)

    def _blank(self, end: int) -> None:
        self._settle_pipes()
        self._inline.end_block()
        self._output.put("\n", end)
        self._may_have_title = False
        self._in_paragraph = self._has_rows = self._has_bare_rows = False
        self._next_line()

    def _first(self, char: str, end: int) -> None:
        """Read the first visible character of a line."""
        if self._quotes != self._quoted:
            self._break(end - 1)
            self._quoted = self._quotes
            self._items.clear()
        while self._items and self._indent < self._items[-1] and not self._in_item:
            self._items.pop()
        column = self._items[-1] if self._items else 0
        if self._indent >= column + CODE_INDENT and not self._in_paragraph and not self._in_item:
            self._output.break_lines(end - 1)
            self._read = self._silent_line
            self._read(char, end)
            return
        self._mark = self._mark_for(char)
        if self._mark is not None:
            self._step(char, end)
        elif char.isdecimal():
            self._read = self._number
            self._read(char, end)
        else:
            self._begin_text()
            self._read(char, end)

    def _mark_for(self, char: str) -> Construct | None:
        if self._has_bare_rows:
            return Row()
        if self._may_have_title and char in "\"'":
            return Title()
        self._may_have_title = False
        if char == "#":
            return Heading()
        if char in "`~":
            return Fence()
        if char in BULLETS or char in OTHER_BULLETS or char in "_=:":
            return Marks(in_paragraph=self._in_paragraph)
        if char == "[":
            return Label(in_item=self._in_item, in_quotation=self._quotes > 0)
        return Row() if char == "|" else None

    def _begin_text(self) -> None:
        self._settle_pipes()
        self._read = self._text
        self._in_paragraph = True

    def _step(self, char: str, end: int) -> None:
        """Let the mark take a character; an empty one is the end of the text."""
        mark = self._mark
        assert mark is not None
        verdict = mark.take(char)
        if verdict is Verdict.MORE and len(self._held) >= mark.limit:
            verdict = Verdict.FAILED
        if char and verdict in (Verdict.MORE, Verdict.DONE):
            self._held.append((char, end))
        if verdict is Verdict.MORE:
            return
        if char and verdict in (Verdict.FAILED, Verdict.DONE_BEFORE):
            self._input.appendleft((char, end))
        held, self._held, self._mark = self._held, [], None
        if verdict is Verdict.FAILED:
            self._begin_text()
            self._input.extendleft(reversed(held))
        else:
            self._accept(mark, held)

    def _accept(self, mark: Construct, held: list[Char]) -> None:
        """Read a line whose kind is certain."""
        first, end = held[0][1] - 1, held[-1][1]
        match mark:
            case Heading():
                self._break(first)
                self._begin_text()
                self._in_heading = True
            case Fence():
                self._break(first)
                self._fence, self._code = mark, ""
                self._read = self._fenced_code
                for char, at in held:
                    self._output.skip(char, at)
            case Marks(is_item=True):
                self._break(first)
                self._begin_item(2)
                self._input.extendleft(reversed(held[2:]))
            case Marks():
                self._settle_pipes(is_text=not mark.is_delimiter)
                self._break(first)
                self._has_rows = self._has_bare_rows = mark.is_delimiter
                self._next_line()
            case Row():
                self._row(held)
            case Label(role=Role.TASK):
                self._in_item = True
                self._indent = 0
            case Label(role=Role.ALERT):
                self._break(first)
                for char, at in held[2:-1]:
                    self._inline.feed(char.upper() if at == held[2][1] else char.lower(), at)
                self._begin_text()
                self._in_heading = True
            case Label(role=Role.FOOTNOTE):
                self._break(first)
                self._read = self._silent_line
            case _:
                self._break(first)
                self._output.leave_out(end)
                self._next_line()
                self._may_have_title = isinstance(mark, Label)

    def _begin_item(self, width: int) -> None:
        self._items.append(self._indent + width)
        self._indent += width
        self._in_item = True
        self._read = self._line_start

    def _number(self, char: str, end: int) -> None:
        """Read a number at the start of a line, which is text, and may be that of a list item."""
        if char.isdecimal() and 0 <= self._digits < LONGEST_NUMBER:
            self._digits += 1
        elif char in ".)" and self._digits > 0:
            self._digits = -1 - self._digits
        elif char == " " and self._digits < 0:
            self._begin_item(1 - self._digits)
        else:
            self._begin_text()
            self._read(char, end)
            return
        self._inline.feed(char, end)

    # ---- the rest of a line

    def _text(self, char: str, end: int) -> None:
        if self._in_heading and (char == "#" or char.isspace()):
            self._closing.append((char, end))
            if char == "\n":
                self._end_heading()
            return
        if self._closing:
            self._take_closing()
        if char == "|" and self._inline.is_idle:
            separator = "" if self._output.at_line_start else ","
            self._pipes.append((self._output.mark_behind_space(char, end), separator))
            self._ends_with_pipe = True
            return
        if not char.isspace():
            self._ends_with_pipe = False
        self._inline.feed(char, end)
        if char == "\n":
            self._next_line()

    def _end_heading(self) -> None:
        """Leave out the marks that close a heading, behind a space."""
        closing, end = "".join(char for char, _ in self._closing), self._closing[-1][1]
        if closing[0] == "#":
            self._take_closing()
        self._closing.clear()
        self._in_heading = False
        self._inline.end_block()
        self._break(end)
        self._next_line()

    def _take_closing(self) -> None:
        for char, end in self._closing:
            self._inline.feed(char, end)
        self._closing.clear()

    def _row(self, row: list[Char]) -> None:
        """Read a row of a table: its cells with commas between them."""
        found = cells(row)
        if is_delimiter(found):
            self._settle_pipes(is_text=False)
            self._has_rows = True
        elif self._is_row(found, row):
            self._break(row[0][1] - 1)
            self._say_cells([cell for cell in found if cell])
        else:
            self._has_rows = self._has_bare_rows = False
            self._begin_text()
            self._input.extendleft(reversed(row))
            return
        self._break(row[-1][1])
        self._read = self._rest_of_row

    def _is_row(self, found: list[list[Char]], row: list[Char]) -> bool:
        """True for a row of a table that has begun, or for one that begins as its header does."""
        if self._has_rows:
            return len(found) > 1 or not self._has_bare_rows
        return len(found) > 1 and "".join(char for char, _ in row).rstrip().endswith("|")

    def _say_cells(self, said: list[list[Char]]) -> None:
        self._inline.line_break = " "
        for cell in said:
            if cell is not said[0]:
                self._output.put(", ", cell[0][1] - 1)
            for char, end in cell:
                self._inline.feed(char, end)
            self._inline.end_block()
        self._inline.line_break = "\n"

    def _rest_of_row(self, char: str, end: int) -> None:
        """Leave out the newline behind a row, or go on behind one that was let go."""
        self._next_line()
        if char != "\n":
            self._read(char, end)

    # ---- lines that are left out

    def _silent_line(self, char: str, end: int) -> None:
        """Leave out a line of indented code, or the text of a footnote."""
        self._output.skip(char, end)
        if char == "\n":
            self._output.end_skipped()
            self._next_line()

    def _fenced_code(self, char: str, end: int) -> None:
        assert self._fence is not None
        if self._quoted and not self._code and not char.isspace() and char != ">":  # the quotation has ended
            self._output.end_skipped()
            self._next_line()
            self._read(char, end)
            return
        self._output.skip(char, end)
        if char != "\n":
            self._code += char if len(self._code) < LONGEST_CLOSER else ""
            return
        line, self._code = self._code, ""
        if self._fence.is_closed_by(line.lstrip("> ") if self._quoted else line):
            self._output.end_skipped()
            self._next_line()
