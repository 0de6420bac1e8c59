"""Marks inside a paragraph: emphasis, code, links, images, tags, entities, escapes and maths.

A construct that may begin takes the characters that follow. If it fails, its first character is text and the others
are read again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from voxcpm_server.text.markup import tags
from voxcpm_server.text.markup.constructs import (
    Char,
    CodeSpan,
    Construct,
    Dollar,
    Entity,
    Escape,
    Exclamation,
    Run,
    Tag,
    Target,
    Verdict,
)
from voxcpm_server.text.markup.emphasis import Emphases
from voxcpm_server.text.markup.output import HOLD, Output, Token

CONSTRUCTS: dict[str, type[Construct]] = {
    **dict.fromkeys("*_~", Run),
    "\\": Escape,
    "$": Dollar,
    "!": Exclamation,
    "<": Tag,
    "&": Entity,
}


@dataclass(frozen=True, slots=True)
class _Bracket:
    """An open bracket of a link, an image or a footnote.

    begins_word: False directly behind a letter or a digit, as in `a[0]`
    """

    token: Token
    is_image: bool
    begins_word: bool


class Inline:
    """Reads the characters of paragraphs, and puts their plain text into an output."""

    def __init__(self, output: Output) -> None:
        self.line_break = "\n"  # `<br>` becomes this text
        self._output = output
        self._construct: Construct | None = None
        self._held: list[Char] = []  # characters of the construct
        self._input: deque[Char] = deque()
        self._before = "\n"  # the last two characters are kept as they are written
        self._at = 0  # the last character ends here
        self._emphases = Emphases(output)
        self._brackets: deque[_Bracket] = deque(maxlen=HOLD)
        self._given_up: dict[object, int] = {}  # each kind of construct has an end, up to where none is looked for
        self._passage: Construct | None = None  # this construct is done, and its text goes on until its end
        self._tail = ""

    @property
    def leaves_out(self) -> bool:
        """True inside a comment, a script or a chain of thought, where lines have no marks."""
        return self._passage is not None and not self._passage.is_spoken

    @property
    def is_maths(self) -> bool:
        """True inside maths that is left as it is."""
        return self._passage is not None and self._passage.is_spoken

    @property
    def is_idle(self) -> bool:
        """True outside of constructs and passages."""
        return self._construct is None and self._passage is None

    @property
    def held(self) -> str:
        """The text that waits in a construct, as it is written."""
        return "".join(char for char, _ in self._held)

    def feed(self, char: str, end: int) -> None:
        """Take the next character, which ends at a position of the caller's text."""
        if self._construct is None and char not in CONSTRUCTS and char not in "[]`" and self._passage is None:
            self._text(char, end)  # most characters are text
            return
        self._input.append((char, end))
        self._work()

    def end_block(self) -> None:
        """End the paragraph: marks without their other half are text."""
        self._end_constructs()
        if self.leaves_out:
            return
        self._passage = None
        self._emphases.end()
        self._given_up.clear()
        self._before = "\n"

    def let_go(self) -> None:
        """Let all text that waits go as it is written. An emphasis of two marks stays open."""
        if not self.leaves_out:
            self._end_constructs()
            self._emphases.let_go()

    def _end_constructs(self) -> None:
        while self._construct is not None:
            self._step("", self._at)
            self._work()
        for bracket in self._brackets:
            bracket.token.settle(is_text=True)
        self._brackets.clear()

    # ---- characters

    def _work(self) -> None:
        while self._input:
            char, end = self._input.popleft()
            if self._passage is not None:
                self._pass(self._passage, char, end)
            elif self._construct is not None:
                self._step(char, end)
            else:
                self._begin(char, end)

    def _text(self, char: str, end: int) -> None:
        self._output.put(char, end)
        self._emphases.on_text(char, end)
        self._before, self._at = self._before[-1] + char[-1], end

    def _begin(self, char: str, end: int) -> None:
        """Read a character outside of constructs."""
        if char == "[":
            self._open_bracket(char, end, is_image=False)
        elif char == "]" and self._brackets and end <= self._given_up.get(Target, 0):
            self._close_bracket(char, end)
        elif char == "]" and self._brackets:
            self._construct = Target(self._before, allows_label=self._brackets[-1].begins_word)
        elif char == "`":
            self._construct = CodeSpan(self._before, {kind for kind, to in self._given_up.items() if end <= to})
        elif char in CONSTRUCTS and end > self._given_up.get(CONSTRUCTS[char], 0):
            self._construct = CONSTRUCTS[char](self._before)
        else:
            self._text(char, end)
        if self._construct is not None:
            self._step(char, end)

    def _step(self, char: str, end: int) -> None:
        """Let the construct take a character; an empty one is the end of the text."""
        construct = self._construct
        assert construct is not None
        verdict = construct.take(char)
        if verdict is Verdict.MORE and len(self._held) >= construct.limit:
            verdict = Verdict.FAILED
        if char and verdict in (Verdict.MORE, Verdict.DONE):
            self._held.append((char, end))
        if verdict is Verdict.MORE:
            return
        held, self._held, self._construct = self._held, [], None
        if char and verdict in (Verdict.FAILED, Verdict.DONE_BEFORE):
            self._input.appendleft((char, end))
        if verdict is Verdict.FAILED:
            self._give_up(construct, held)
        else:
            self._finish(construct, held)

    def _give_up(self, construct: Construct, held: list[Char]) -> None:
        self._given_up[construct.kind] = held[-1][1]
        if isinstance(construct, Target):
            self._close_bracket(*held[0])
        else:
            for char, end in held[: construct.literal]:
                self._text(char, end)
        self._input.extendleft(reversed(held[construct.literal :]))

    def _finish(self, construct: Construct, held: list[Char]) -> None:
        last, end = held[-1]
        match construct:
            case Run():
                self._emphases.on_run(construct, end)
            case Exclamation(is_image=True):
                self._open_bracket("![", end, is_image=True)
            case Target():
                self._link(end)
            case Tag(tag=tags.Tag(is_address=False) as tag):
                self._on_tag(tag, end)
            case _:
                for char, at in construct.plain(held):
                    self._text(char, at)
        if construct.until:
            self._passage, self._tail = construct, ""
        self._before, self._at = last, end

    def _on_tag(self, tag: tags.Tag, end: int) -> None:
        if tag.name == "br":
            self._text(self.line_break, end)
        elif tag.begins_cell and not self._output.at_line_start:
            self._output.put(", ", end)
        elif tag.ends_paragraph:
            self._output.break_lines(end)

    # ---- links, images and footnotes

    def _open_bracket(self, mark: str, end: int, *, is_image: bool) -> None:
        token = self._output.mark(mark, end)
        self._brackets.append(_Bracket(token, is_image, not self._before[-1].isalnum()))
        self._before, self._at = "[", end

    def _link(self, end: int) -> None:
        """The last bracket is that of a link or an image, whose target ends at `end`."""
        bracket = self._brackets.pop()
        if not bracket.token.in_doubt:  # its text was too long to wait
            return
        if bracket.is_image:
            self._output.drop_since(bracket.token)
            self._output.leave_out(end)
        else:
            bracket.token.settle(is_text=False)

    def _close_bracket(self, mark: str, end: int) -> None:
        """The last bracket has no target: it is a footnote, or text."""
        bracket = self._brackets.pop()
        if bracket.token.in_doubt and self._output.text_since(bracket.token).startswith("[^"):
            self._output.drop_since(bracket.token)
            self._before, self._at = mark, end
            return
        bracket.token.settle(is_text=True)
        self._text(mark, end)

    # ---- passages whose text is not read

    def _pass(self, passage: Construct, char: str, end: int) -> None:
        if passage.is_spoken:
            self._text(char, end)
        else:
            self._output.skip(char, end)
            self._at = end
        self._tail = (self._tail + char.lower())[-len(passage.until) :]
        if self._tail == passage.until:
            self._passage, self._before = None, char
            self._output.end_skipped()
