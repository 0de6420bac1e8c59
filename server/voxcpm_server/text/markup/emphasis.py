"""Emphasis: runs of `*`, `_` and `~~` around text."""

from __future__ import annotations

import unicodedata
from collections import defaultdict, deque
from dataclasses import dataclass

from voxcpm_server.text.markup.constructs import Run
from voxcpm_server.text.markup.output import HOLD, Output, Token

CLOSERS = frozenset(".,;:!?)]}>/%")  # a single star before one of these is text, as in `*.py`


@dataclass(slots=True, eq=False)
class _Emphasis:
    """An open emphasis.

    is_line: True if it is strong and begins a line
    in_word: True if it begins inside a word, where it must end, too
    """

    token: Token
    count: int
    is_line: bool
    in_word: bool


class Emphases:
    """The open emphases of a paragraph, by their mark.

    An opening mark waits for the closing one, at most as long as the output holds it: then it is silent, and the
    emphasis stays open.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._open: defaultdict[str, deque[_Emphasis]] = defaultdict(lambda: deque(maxlen=HOLD))
        self._is_heading = False  # all of the line so far is strong

    def on_text(self, char: str, end: int) -> None:
        """Take a character that is text. A line that is strong as a whole is a heading."""
        if char == "\n" and self._is_heading:
            self._output.break_lines(end)
        if not char.isspace() and char not in ":：":
            self._is_heading = False
        stars = self._open["*"]
        while stars and stars[-1].in_word and not char.isalpha():
            stars.pop().token.settle(is_text=True)

    def on_run(self, run: Run, end: int) -> None:
        """Take a run of marks, which ends at a position of the caller's text."""
        left = run.count
        if self._may_close(run):
            left = self._close(run.mark, left)
        if not left:
            return
        if self._opens(run, left):
            in_word = run.mark == "*" and left == 1 and _is_word(run.before)
            token = self._output.mark(run.mark * left, end, opens=not in_word)
            self._open[run.mark].append(_Emphasis(token, left, left > 1 and run.before == "\n", in_word))
        else:
            self._is_heading = False
            self._output.put(run.mark * left, end)

    def _may_close(self, run: Run) -> bool:
        opened = self._open[run.mark]
        if not opened or run.before.isspace():
            return False
        if run.mark == "_":
            return not run.following.isalnum()
        is_inside = _is_word(run.before) and _is_word(run.following)
        return not is_inside or run.count == opened[-1].count

    def _close(self, mark: str, count: int) -> int:
        """Close emphases with at most `count` marks. Returns the number of those that are left."""
        opened = self._open[mark]
        while count and opened and not (mark == "~" and count != opened[-1].count):
            last = opened[-1]
            used = min(count, last.count)
            last.count -= used
            count -= used
            if last.count:
                if last.token.in_doubt:
                    last.token.text = mark * last.count
                continue
            opened.pop()
            last.token.settle(is_text=False)
            self._is_heading = last.is_line
        return count

    def _opens(self, run: Run, count: int) -> bool:
        before, following = run.before, run.following
        if not following or following.isspace() or (run.mark == "~" and count != 2):
            return False
        if run.mark == "_":
            return not before.isalnum()
        if following in CLOSERS and (count == 1 or _is_word(before)):
            return False
        if not _is_word(before):
            return True
        return (not following.isdigit()) if count > 1 else run.follows_letters and following.isalpha()

    def end(self) -> None:
        """The paragraph ends: marks in doubt are text."""
        for emphasis in self._all():
            if emphasis.token.in_doubt:
                emphasis.token.settle(is_text=True)
        self._open.clear()
        self._is_heading = False

    def let_go(self) -> None:
        """No text follows for a while: single marks in doubt are text, and others are silent and stay open."""
        for emphasis in self._all():
            if emphasis.token.in_doubt:
                emphasis.token.settle(is_text=emphasis.count == 1)
        for opened in self._open.values():
            for emphasis in [one for one in opened if one.token.text]:
                opened.remove(emphasis)

    def _all(self) -> list[_Emphasis]:
        return [emphasis for opened in self._open.values() for emphasis in opened]


def _is_word(char: str) -> bool:
    """True for letters and digits of scripts with spaces between words."""
    return char.isalnum() and unicodedata.category(char) != "Lo"
