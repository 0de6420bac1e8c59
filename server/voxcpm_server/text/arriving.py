"""Text that is cleaned and spelled while it arrives: no further text changes what was given out."""

from __future__ import annotations

from dataclasses import dataclass

from voxcpm_grpc.text.characters import INVISIBLE, readable
from voxcpm_server.text.lexicon import Lexicon
from voxcpm_server.text.normalize.phonemes import open_phonemes
from voxcpm_server.text.preparation import replacements
from voxcpm_server.text.words.characters import is_joined, without_control


@dataclass(frozen=True, slots=True)
class Spelled:
    """A part of the text as it is spoken.

    ends: for each character the end of what it stands for, in code points of the text that arrives
    wholes: ranges there that a lexicon replaced
    """

    text: str
    ends: tuple[int, ...]
    wholes: tuple[tuple[int, int], ...]


class ArrivingSpelling:
    """Gives out text as `characters.spoken` and the lexicon make it of the whole, for any division into parts.

    The last visible character waits, because a mark may follow it. A word that a lexicon may have waits for its end,
    and so do phonemes. White space is given out at once: it ends a word, and a space at the end of all text is none.

    lexicon: the words that are spoken as if they were written in another way
    start: position of the first character
    """

    def __init__(self, lexicon: Lexicon, start: int = 0) -> None:
        self.lexicon = lexicon
        self._atom = ""  # a character with its marks, of which more may follow
        self._at = start  # its position
        self._spaced = True  # white space that follows is left out
        self._clean = ""  # it waits for the end of a word of the lexicon
        self._ranges: list[tuple[int, int]] = []  # each of its characters has one, in the text that arrives
        self._before = ""  # the visible character in front of it, and what follows that
        self.read = start  # the end of what was given out, but for a space

    def feed(self, text: str) -> Spelled:
        """Take more text; returns what no further text can change."""
        for char in text:
            goes_on = INVISIBLE.match(char) or is_joined(self._atom + char, len(self._atom))
            if self._atom and (char.isspace() or not goes_on):
                self._end_atom(char)
            self._atom += char
            if char.isspace():
                self._add(" ", self._at, self._at + len(self._atom))
        return self._settled(last=False)

    def end(self, stop: int) -> Spelled:
        """The rest of the text in front of a position. None of the text behind it was given out."""
        if self._at < stop:
            self._end_atom("")
        kept = sum(start < stop for start, _ in self._ranges)
        self._clean, self._ranges = self._clean[:kept], self._ranges[:kept]
        return self._settled(last=True)

    def _end_atom(self, following: str) -> None:
        atom, start = self._atom, self._at
        self._atom, self._at = "", start + len(atom)
        shown = atom
        if not atom.isascii():  # a joiner stays or goes by what follows it
            behind = readable(following)
            shown = readable(atom + following).removesuffix(behind)
        for char in without_control(shown):
            if not char.isspace():
                self._add(char, start, self._at)

    def _add(self, char: str, start: int, end: int) -> None:
        """Add a character, which stands for a range of the text that arrives; a space only between others."""
        if char == " " and self._spaced:
            return
        self._spaced = char == " "
        self._clean += char
        self._ranges.append((start, end))

    def _settled(self, *, last: bool) -> Spelled:
        text, known = self._before + self._clean, len(self._before)
        words = list(replacements(text, self.lexicon, known))
        limit = len(text)
        if not last:
            limit = self.lexicon.undecided(text, known)
            while crossed := next((word for word in words if word.start < limit < word.end), None):
                limit = self.lexicon.undecided(text, crossed.end)
            limit = min(limit, open_phonemes(text))
        parts, ends, wholes, at = list[str](), list[int](), list[tuple[int, int]](), known
        for word in words:
            if word.end > limit:
                break
            parts += text[at : word.start], word.spelling
            ends += (end for _, end in self._ranges[at - known : word.start - known])
            start, end = self._ranges[word.start - known][0], self._ranges[word.end - 1 - known][1]
            ends += [end] * len(word.spelling)
            wholes.append((start, end))
            at = word.end
        parts.append(text[at:limit])
        ends += (end for _, end in self._ranges[at - known : limit - known])
        if limit > known:
            if visible := text[known:limit].rstrip():
                self.read = self._ranges[len(visible) - 1][1]
            self._before = _context(text[:limit])
            self._clean, self._ranges = text[limit:], self._ranges[limit - known :]
        return Spelled("".join(parts), tuple(ends), tuple(wholes))


def _context(text: str) -> str:
    """The last visible character of a text, and what follows it."""
    at = len(text) - 1
    while at > 0 and INVISIBLE.match(text[at]):
        at -= 1
    return text[at:]
