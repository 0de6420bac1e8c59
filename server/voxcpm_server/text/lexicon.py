"""The lexicons of the server and of a stream: words that are spoken as if they were written in another way."""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from voxcpm_grpc.text.characters import INVISIBLE, readable
from voxcpm_grpc.text.lexicon import clean
from voxcpm_server.text.words.characters import is_joined
from voxcpm_server.text.words.spoken_words import is_unspaced


@dataclass(frozen=True, slots=True)
class Replacement:
    """A word of a text, text[start:end], and the spelling that is spoken instead of it."""

    start: int
    end: int
    spelling: str


class WordList:
    """The words of one lexicon. A word in lower case alone matches every case; any other word matches its own case."""

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._entries = {clean(word): readable(spelling) for word, spelling in entries.items()}
        sizes: defaultdict[str, set[int]] = defaultdict(set)
        for word in self._entries:
            sizes[_folded(word[0])].add(len(word))
        # Words that begin with a character, in lower case, have these lengths.
        self.lengths: Mapping[str, Set[int]] = sizes

    @cached_property
    def _folded_words(self) -> Sequence[str]:
        return sorted(map(_folded, self._entries))

    def may_go_on(self, folded: str) -> bool:
        """True if a word of the lexicon is or begins with this text, which is in lower case."""
        behind = bisect_left(self._folded_words, folded)
        return behind < len(self._folded_words) and self._folded_words[behind].startswith(folded)

    def spelling(self, word: str, folded: str) -> str | None:
        """The spelling of a word, also given in lower case; None if the lexicon does not have it."""
        found = self._entries.get(word)
        return self._entries.get(folded) if found is None else found


class Lexicon:
    """Word lists, of which the first ones take precedence.

    At each place of a text the longest word is taken, from left to right, and what it is replaced by is not searched
    again. A word with a letter or a digit at its end matches up to the end of a word in the text only. Scripts without
    spaces between words (CJK, Thai and others) have no such ends: their words match everywhere.
    """

    def __init__(self, *lists: WordList) -> None:
        self._lists = lists
        firsts = {first for one in lists for first in one.lengths}
        self._lengths = {
            first: sorted({length for one in lists for length in one.lengths.get(first, ())}, reverse=True)
            for first in firsts
        }

    def preceded_by(self, entries: Mapping[str, str]) -> Lexicon:
        """This lexicon with words that take precedence."""
        return Lexicon(WordList(entries), *self._lists) if entries else self

    def find(self, text: str, start: int = 0) -> Iterator[Replacement]:
        """The words of a composed text with single spaces, from a place on. Invisible characters do not matter."""
        if not self._lists:
            return
        visible, places = _visible(text)
        folded = _folded(visible)
        done = 0
        for at, first in enumerate(folded):
            if first not in self._lengths or at < done or places[at] < start or not _is_border(visible, at):
                continue
            end, spelling = self._longest(visible, folded, at)
            if end:
                yield Replacement(places[at], places[end], spelling)
                done = end

    def undecided(self, text: str, start: int) -> int:
        """The first place from `start` on where a word may begin that ends behind the text, or with it.

        The length of the text if there is none. For text as for `find`.
        """
        visible, places = _visible(text)
        folded, size = _folded(visible), len(visible)
        longest = max((sizes[0] for sizes in self._lengths.values()), default=0)
        for at in range(max(0, size - longest), size):
            if places[at] < start or size - at > self._lengths.get(folded[at], (0,))[0]:
                continue
            if _is_border(visible, at) and any(one.may_go_on(folded[at:]) for one in self._lists):
                return places[at]
        return len(text)

    def _longest(self, text: str, folded: str, at: int) -> tuple[int, str]:
        """The end of the longest word that begins at a place, and its spelling; 0 if there is none."""
        for end in (at + length for length in self._lengths[folded[at]]):
            if end <= len(text):
                word, lower = text[at:end], folded[at:end]
                for one in self._lists:
                    if (spelling := one.spelling(word, lower)) is not None and _is_border(text, end):
                        return end, spelling
        return 0, ""


def respelled(text: str, replacements: Sequence[Replacement]) -> str:
    """The text with its replacements, which are in order."""
    parts: list[str] = []
    done = 0
    for word in replacements:
        parts += text[done : word.start], word.spelling
        done = word.end
    return "".join([*parts, text[done:]])


def _visible(text: str) -> tuple[str, list[int]]:
    """The visible characters of a text, and their places in it with its end."""
    places = [at for at, char in enumerate(text) if not INVISIBLE.match(char)]
    return "".join(text[at] for at in places), [*places, len(text)]


def _folded(text: str) -> str:
    """The text in lower case, with one character for each."""
    if len(folded := text.lower()) == len(text):
        return folded
    return "".join(lower if len(lower := char.lower()) == 1 else char for char in text)


def _is_border(text: str, at: int) -> bool:
    """True if a word may begin or end at a place in the text."""
    if at in (0, len(text)):
        return True
    before, after = text[at - 1], text[at]
    if is_joined(text, at):
        return False
    if not (_is_letter(before) and _is_letter(after)):
        return True
    return is_unspaced(before) or is_unspaced(after) or _is_hangul(before) != _is_hangul(after)


def _is_letter(char: str) -> bool:
    return char.isalnum() or unicodedata.category(char)[0] == "M"


def _is_hangul(char: str) -> bool:
    return "\uac00" <= char <= "\ud7a3" or "\u1100" <= char <= "\u11ff"
