"""Constructs inside a paragraph that begin with one character and end at a place that their own text decides."""

from __future__ import annotations

import html
import string
from collections.abc import Callable
from enum import Enum, auto

from voxcpm_server.text.markup import tags
from voxcpm_server.text.markup.output import HOLD

Char = tuple[str, int]  # a character comes with its end in the caller's text
LONGEST_ENTITY = 33
LONGEST_TARGET = 2000  # characters of a link with its title, or of a tag; nothing that is spoken waits for it
LONGEST_LABEL = 60  # characters of a reference
BARE_ATTRIBUTES = 3  # words of a tag in a row that have no value; more are text, as in "if a <b and then"
THOUSANDS = frozenset("kKmMbBtT")  # they may follow an amount of money
MATHS = {"(": "\\)", "[": "\\]"}


class Verdict(Enum):
    """The state of a construct after a character."""

    MORE = auto()  # it goes on
    DONE = auto()  # it ends with this character
    DONE_BEFORE = auto()  # it has ended before this character
    FAILED = auto()  # it is no construct: its first character is text


class Construct:
    """A construct, which begins with the first character given to `take`.

    limit: characters after which it is given up
    literal: characters at its start that are text if it fails
    until: the end of the text that belongs to it after it is done; empty if it is complete
    is_spoken: False if that text is left out
    """

    limit = HOLD
    literal = 1
    until = ""
    is_spoken = True

    def __init__(self, before: str = "\n") -> None:
        self.before = before[-1:]  # it is the character before the construct

    @property
    def kind(self) -> object:
        """The kind that is not looked for again in text in which one was given up."""
        return type(self)

    def take(self, char: str) -> Verdict:
        """Take the next character; an empty one is the end of the text."""
        raise NotImplementedError

    def plain(self, held: list[Char]) -> list[Char]:
        """The plain text of the construct."""
        return held


class Escape(Construct):
    """A backslash before punctuation, which is then no mark; or the start of maths, which is left as it is."""

    def __init__(self, before: str = "\n") -> None:
        super().__init__(before)
        self._begun = False

    def take(self, char: str) -> Verdict:
        if not self._begun:
            self._begun = True
            return Verdict.MORE
        if char == "\n":
            return Verdict.DONE
        self.until = MATHS.get(char, "")
        return Verdict.DONE if char and char in string.punctuation else Verdict.FAILED

    def plain(self, held: list[Char]) -> list[Char]:
        return held if self.until else held[1:]


class Entity(Construct):
    """A character by its name or number, such as `&amp;`."""

    limit = LONGEST_ENTITY

    def take(self, char: str) -> Verdict:
        if char == ";":
            return Verdict.DONE
        return Verdict.MORE if char == "&" or char == "#" or (char.isascii() and char.isalnum()) else Verdict.FAILED

    def plain(self, held: list[Char]) -> list[Char]:
        written = "".join(char for char, _ in held)
        meant = html.unescape(written)
        return held if meant == written else [(meant, held[-1][1])]


class CodeSpan(Construct):
    """Code between two equal runs of backticks. It is spoken as it is."""

    def __init__(self, before: str, given_up: set[object]) -> None:
        super().__init__(before)
        self.literal = 0
        self._given_up = given_up
        self._in_fence = True
        self._run = 0

    @property
    def kind(self) -> object:
        return CodeSpan, self.literal

    def take(self, char: str) -> Verdict:
        if self._in_fence:
            if char == "`":
                self.literal += 1
                return Verdict.MORE
            self._in_fence = False
            return Verdict.FAILED if not char or self.kind in self._given_up else Verdict.MORE
        if char == "`":
            self._run += 1
            return Verdict.MORE
        if self._run == self.literal:
            return Verdict.DONE_BEFORE
        self._run = 0
        return Verdict.MORE if char else Verdict.FAILED

    def plain(self, held: list[Char]) -> list[Char]:
        inner = [(" " if char == "\n" else char, end) for char, end in held[self.literal : -self.literal]]
        if len(inner) > 2 and inner[0][0] == inner[-1][0] == " ":
            return inner[1:-1]
        return inner


class Dollar(Construct):
    """Maths between dollars, which is left as it is. An amount of money is no maths."""

    def __init__(self, before: str = "\n") -> None:
        super().__init__(before)
        self._state = self._start
        self._last = ""

    def take(self, char: str) -> Verdict:
        verdict = self._state(char)
        self._last = "" if self._last == "\\" else char
        return verdict

    def _start(self, char: str) -> Verdict:
        self._state = self._first
        return Verdict.MORE

    def _first(self, char: str) -> Verdict:
        if char == "$":
            self._state = self._display
            return Verdict.MORE
        if char.isdigit():
            self._state = self._amount
            return Verdict.MORE
        self._state = self._body
        return Verdict.MORE if char.isalpha() or (char and char in "\\([{|-+") else Verdict.FAILED

    def _display(self, char: str) -> Verdict:
        self.until = "$$"
        return Verdict.FAILED if char == "$" else Verdict.DONE_BEFORE

    def _amount(self, char: str) -> Verdict:
        if char.isdigit() or (char and char in ",."):
            return Verdict.MORE
        self._state = self._body
        if char == "$":
            return self._body(char)
        is_maths = (char.isalpha() and char not in THOUSANDS) or (char and char in "\\^_={*<>")
        return Verdict.MORE if is_maths else Verdict.FAILED

    def _body(self, char: str) -> Verdict:
        if char == "$" and self._last != "\\" and not self._last.isspace():
            self._state = self._behind
            return Verdict.MORE
        return Verdict.FAILED if char in ("", "\n") else Verdict.MORE

    def _behind(self, char: str) -> Verdict:
        return Verdict.FAILED if char.isdigit() else Verdict.DONE_BEFORE


class Tag(Construct):
    """An HTML tag, which is silent, a comment, or an address between angle brackets, which is text."""

    limit = LONGEST_TARGET

    def __init__(self, before: str = "\n") -> None:
        super().__init__(before)
        self._text: list[str] = []
        self._quote = ""
        self._words = 0  # words without a value, since the last value
        self._unquoted = 0
        self.tag: tags.Tag | None = None  # the tag is known at its end

    def take(self, char: str) -> Verdict:
        self._text.append(char)
        if len(self._text) == 1:
            return Verdict.MORE
        if len(self._text) == 2:
            return Verdict.MORE if char and (char.isalpha() or char in "/!?") else Verdict.FAILED
        if char == "-" and "".join(self._text) == "<!--":
            self.until, self.is_spoken = "-->", False
            return Verdict.DONE
        if not char or (char == "<" and not self._quote):
            return Verdict.FAILED
        if self._quote or (char in "\"'" and self._text[-2] == "="):
            self._quote = "" if char == self._quote else self._quote or char
            self._words = self._unquoted = 0
            return Verdict.MORE
        self._unquoted += 1
        self._words += char.isspace()
        if char != ">":
            return Verdict.FAILED if self._words > BARE_ATTRIBUTES or self._unquoted > HOLD else Verdict.MORE
        return self._end()

    def _end(self) -> Verdict:
        self.tag = tag = tags.parsed("".join(self._text), self.before)
        if tag is None:
            return Verdict.FAILED
        if tag.is_silent:
            self.until, self.is_spoken = f"</{tag.name}>", False
        return Verdict.DONE

    def plain(self, held: list[Char]) -> list[Char]:
        return held[1:-1] if self.tag is not None and self.tag.is_address else []


class Run(Construct):
    """A run of one character that may begin or end an emphasis.

    following: the character behind it
    follows_letters: True behind at least two letters
    """

    limit = 10**9  # nothing else waits for it

    def __init__(self, before: str = "\n") -> None:
        super().__init__(before)
        self.follows_letters = len(before) == 2 and before.isalpha()
        self.mark = self.following = ""
        self.count = 0

    def take(self, char: str) -> Verdict:
        self.mark = self.mark or char
        if char == self.mark:
            self.count += 1
            return Verdict.MORE
        self.following = char
        return Verdict.DONE_BEFORE


class Exclamation(Construct):
    """An exclamation mark, which may stand before the bracket of an image."""

    def __init__(self, before: str = "\n") -> None:
        super().__init__(before)
        self._begun = self.is_image = False

    def take(self, char: str) -> Verdict:
        if not self._begun:
            self._begun = True
            return Verdict.MORE
        self.is_image = char == "["
        return Verdict.DONE if self.is_image else Verdict.DONE_BEFORE


class Target(Construct):
    """The target of a link behind its closing bracket: `](address "title")`, or `][label]`. Fails if there is none."""

    limit = LONGEST_TARGET

    def __init__(self, before: str, *, allows_label: bool) -> None:
        super().__init__(before)
        self._state: Callable[[str], Verdict] = self._start
        self._allows_label = allows_label
        self._depth = 0
        self._closes = ""
        self._length = 0

    def take(self, char: str) -> Verdict:
        return Verdict.FAILED if char in ("", "\n") else self._state(char)

    def _to(self, state: Callable[[str], Verdict]) -> Verdict:
        self._state = state
        return Verdict.MORE

    def _start(self, char: str) -> Verdict:
        return self._to(self._kind)

    def _kind(self, char: str) -> Verdict:
        if char == "(":
            return self._to(self._address_start)
        if char == "[" and self._allows_label:
            return self._to(self._label)
        return Verdict.FAILED

    def _label(self, char: str) -> Verdict:
        self._length += 1
        if char == "]":
            return Verdict.DONE
        return Verdict.FAILED if char == "[" or self._length > LONGEST_LABEL else Verdict.MORE

    def _address_start(self, char: str) -> Verdict:
        if char.isspace():
            return Verdict.MORE
        if char == "<":
            return self._to(self._in_angles)
        self._state = self._address
        return self._address(char)

    def _in_angles(self, char: str) -> Verdict:
        if char == ">":
            return self._to(self._behind_address)
        return Verdict.FAILED if char == "<" else Verdict.MORE

    def _address(self, char: str) -> Verdict:
        if char.isspace():
            return self._to(self._behind_address) if not self._depth else Verdict.FAILED
        if char == ")" and not self._depth:
            return Verdict.DONE
        self._depth += (char == "(") - (char == ")")
        return Verdict.MORE

    def _behind_address(self, char: str) -> Verdict:
        if char.isspace():
            return Verdict.MORE
        if char in "\"'(":
            self._closes = ")" if char == "(" else char
            return self._to(self._title)
        return Verdict.DONE if char == ")" else Verdict.FAILED

    def _title(self, char: str) -> Verdict:
        return self._to(self._behind_title) if char == self._closes else Verdict.MORE

    def _behind_title(self, char: str) -> Verdict:
        if char.isspace():
            return Verdict.MORE
        return Verdict.DONE if char == ")" else Verdict.FAILED
