"""Plain text with its place in the caller's text, and the marks of which it is not yet known whether they are text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

HOLD = 120  # characters that wait for the other half of a mark
LONGEST_SILENCE = 1000  # characters that are left out in one piece


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the result.

    text: plain text of any length; empty for a part of the caller's text that is left out
    end: the caller's text up to this position has become this piece and those before it
    """

    text: str
    end: int


@dataclass(slots=True, eq=False)
class Token:
    """A character of the result, or a mark in doubt.

    in_doubt: True while it is not known whether it is text; nothing behind it leaves the output
    opens: True if a mark that is still in doubt at the limit is markup, not text
    left_out: True for text with letters or digits that is not spoken
    """

    text: str
    end: int
    in_doubt: bool = False
    opens: bool = False
    left_out: bool = False

    def settle(self, *, is_text: bool) -> None:
        """Decide what the mark is."""
        self.in_doubt = False
        if not is_text:
            self.text = ""


class Output:
    """The queue of the tokens that have not left yet."""

    def __init__(self) -> None:
        self._tokens: deque[Token] = deque()
        self._newlines = 2  # line breaks at the end of the text; no break is due before its start
        self._skipped = self._skipped_end = 0  # characters of the piece that is being left out, and their end
        self._skips_words = False

    @property
    def at_line_start(self) -> bool:
        """True if nothing visible follows the last newline."""
        return self._newlines > 0

    @property
    def held(self) -> str:
        """The text that waits, with its marks as they are written."""
        return "".join(token.text for token in self._tokens)

    def put(self, text: str, end: int) -> None:
        """Add plain text that ends at a position of the caller's text."""
        self._tokens.append(Token(text, end))
        for char in text:
            if char == "\n":
                self._newlines += 1
            elif not char.isspace():
                self._newlines = 0

    def mark(self, text: str, end: int, *, opens: bool = False) -> Token:
        """Add a mark in doubt."""
        token = Token(text, end, in_doubt=True, opens=opens)
        self._tokens.append(token)
        self._newlines = 0
        return token

    def mark_behind_space(self, text: str, end: int) -> Token:
        """Add a mark in doubt, with the space before it if it has not left."""
        if self._tokens and self._tokens[-1].text == " ":
            text = self._tokens.pop().text + text
        return self.mark(text, end)

    def leave_out(self, end: int) -> None:
        """Note that text with letters or digits, which ends at a position, is not spoken."""
        self.end_skipped()
        self._tokens.append(Token("", end, left_out=True))

    def skip(self, char: str, end: int) -> None:
        """Leave out the next character of a text that may be long, up to `end_skipped`."""
        self._skipped += 1
        self._skipped_end = end
        self._skips_words = self._skips_words or char.isalnum()
        if self._skipped == LONGEST_SILENCE:
            self.end_skipped()

    def end_skipped(self) -> None:
        if self._skips_words:
            self._tokens.append(Token("", self._skipped_end, left_out=True))
        self._skipped, self._skips_words = 0, False

    def break_lines(self, end: int) -> None:
        """End the paragraph, if it has not ended."""
        if self._newlines < 2:
            self.put("\n" * (2 - self._newlines), end)

    def drop_since(self, first: Token) -> None:
        """Make everything from a token on silent."""
        for token in reversed(self._tokens):
            token.settle(is_text=False)
            if token is first:
                return

    def text_since(self, first: Token) -> str:
        """The text from a token on."""
        texts: list[str] = []
        for token in reversed(self._tokens):
            texts.append(token.text)
            if token is first:
                break
        return "".join(reversed(texts))

    def take(self, *, last: bool = False) -> Iterator[Piece]:
        """Remove the tokens that are certain. A space waits for the next character, except for the last time."""
        tokens = self._tokens
        while tokens:
            if len(tokens) == 1 and tokens[0].text == " " and not last:
                return
            if tokens[0].in_doubt:
                if len(tokens) <= HOLD:
                    return
                tokens[0].settle(is_text=not tokens[0].opens)
            token = tokens.popleft()
            if token.text or token.left_out:
                yield Piece(token.text, token.end)
