"""Where text is cut into what the model speaks at once.

Text arrives in pieces of any size, and the same text must give the same segments however it was cut. So whether a
segment ends is decided at positions that the text itself defines, from the text before that position alone: the
messages' borders never enter, and what was emitted for a prefix is never revised.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import sentencex

log = logging.getLogger(__name__)

LANGUAGE = "en"  # its rules know the sentence ends of all scripts, and most abbreviations met in mixed text
WINDOW = 1000  # spoken text, in code points, that is looked at again: quotes and brackets span sentences
BEGUN_AFTER = 2  # sentences that must have begun after one before it is taken as complete

# A full stop of a script without spaces is never part of a number or an abbreviation.
_CJK_SENTENCE = re.compile(r"[。！？｡．][」』”’）】》〉]*\s*$")
_CJK_OPEN = str.maketrans(dict.fromkeys("「『“（【《〈", "("))
_CJK_CLOSE = str.maketrans(dict.fromkeys("」』”）】》〉", ")"))
_CLAUSE = re.compile(r"[,;:،؛…–—](?=\s)|[、，；：—]")
_SIGN = re.compile(r"[^\w\s]|[\n\r\u2028\u2029]")
_SPACE = re.compile(r"\s")
# The library fails on white space of more than one byte behind initials.
_PLAIN = {c: "\n" if chr(c) in "\x85\u2028\u2029" else " " for c in range(128, 0x3001) if chr(c).isspace()}


@dataclass(frozen=True, slots=True)
class Piece:
    """Clean text and its range of the turn's input; `spaced` if whitespace stands before it in the input."""

    text: str
    spaced: bool
    start: int
    end: int


class Segmenter:
    """Cuts one turn. `sentences` False keeps everything until `flush`.

    `feed` costs microseconds for each word; callers on an event loop hand it short pieces.
    """

    def __init__(self, *, sentences: bool, max_chars: int) -> None:
        self._sentences = sentences
        self._max_chars = max_chars
        self._text = ""  # the turn from `_base` on
        self._plain = ""  # the same with plain white space
        self._base = 0
        self._at = 0  # in `_text`: everything before it was emitted
        self._cuts: deque[int] = deque([0])  # of the turn, oldest first, within WINDOW of `_at`
        self._spaced = False

    @property
    def pending(self) -> int:
        """Code points that wait for the end of their segment."""
        return len(self._text) - self._at

    def feed(self, text: str) -> Iterator[Piece]:
        """Take more text; yields the segments that are now certain. Must be exhausted."""
        done = len(self._text)
        self._text += text
        self._plain += text.translate(_PLAIN)
        if not self._sentences:
            return
        while done < len(self._text):
            done += 1
            if self._is_due(done):
                before = self._base
                yield from self._emit(done)
                done -= self._base - before

    def flush(self) -> Iterator[Piece]:
        """Everything that waits, cut as if no more followed. Must be exhausted."""
        while self.pending:
            yield from self._take(self._last_cut())

    def _is_due(self, stop: int) -> bool:
        """Whether the character before `stop` can have settled something: it begins a word, or the limit is passed."""
        last, before = self._text[stop - 1], self._text[stop - 2] if stop > 1 else " "
        if last.isspace():
            return False
        if stop - self._at > self._max_chars:
            return True
        return not _is_word(before) and _SIGN.search(self._text, self._at, stop) is not None

    def _emit(self, stop: int) -> Iterator[Piece]:
        while (cut := self._certain_cut(stop)) is not None:
            length = len(self._text)
            yield from self._take(cut)
            stop -= length - len(self._text)  # taking may forget old text

    def _certain_cut(self, stop: int) -> int | None:
        waiting = self._text[self._at : stop]
        if (margin := len(waiting) - len(waiting.lstrip())) > self._max_chars:
            return self._at + margin  # or a flood of spaces would be looked at again with every word behind it
        full = len(waiting) - margin > self._max_chars
        ends = self._sentence_ends(stop)
        if not ends:
            return self._split(stop) if full else None
        sentence = self._text[self._at : ends[0]]
        if full:
            return ends[0] if len(sentence.strip()) <= self._max_chars else self._split(stop)
        if len(ends) > BEGUN_AFTER or (len(ends) > 1 and _is_cjk_sentence(sentence)):
            return ends[0]
        return None

    def _last_cut(self) -> int:
        """Where the next segment ends when no more text follows."""
        size = len(self._text)
        stop = min(size, self._at + 2 * self._max_chars + WINDOW)
        if not self._sentences:
            fits = len(self._text[self._at :].strip()) <= self._max_chars
            return size if fits else self._split(stop)
        ends = self._sentence_ends(stop)
        end = ends[0] if ends else stop
        if len(self._text[self._at : end].strip()) > self._max_chars:
            return self._split(stop)
        whole = self._text[self._at :].strip()
        if len(whole) <= self._max_chars and not is_speakable(self._text[end:]):
            return size  # a last smiley belongs to the sentence before it
        return end

    def _sentence_ends(self, stop: int) -> list[int]:
        """Ends of the sentences after `_at`, the last one being `stop`; the first holds something to speak."""
        start = self._cuts[0] - self._base
        sentences = _sentences(self._plain[start:stop])
        ends = [end for end in accumulate(map(len, sentences), initial=start) if end > self._at]
        while ends and not is_speakable(self._text[self._at : ends[0]]):
            del ends[0]
        return ends

    def _split(self, stop: int) -> int:
        """The best place to cut text that is too long: at most `max_chars` after its first visible character."""
        text = self._text[:stop]
        first = self._at + len(text[self._at :]) - len(text[self._at :].lstrip())
        last = first + self._max_chars
        if last >= stop:
            return stop
        places = [] if self._sentences else [end for end in self._sentence_ends(stop) if end <= last]
        places = places or [m.end() for m in _CLAUSE.finditer(text, first, last + 1) if m.end() <= last]
        if not places or places[-1] - first < self._max_chars // 4:  # a stub in front of a long rest helps nobody
            places = [m.start() for m in _SPACE.finditer(text, first, last + 1)] or places
        if places:
            return places[-1]
        return next((cut for cut in range(last, first, -1) if not is_joined(text, cut)), last)

    def _take(self, cut: int) -> Iterator[Piece]:
        """Emit the text up to `cut`, unless nothing of it can be spoken."""
        raw = self._text[self._at : cut]
        start = self._base + self._at
        spaced = self._spaced or raw[:1].isspace()
        self._at = cut
        self._forget()
        if is_speakable(raw):
            self._spaced = raw[-1:].isspace()
            yield Piece(spoken(raw), spaced, start, start + len(raw))
        else:
            self._spaced = spaced or _SPACE.search(raw) is not None

    def _forget(self) -> None:
        at = self._base + self._at
        self._cuts.append(at)
        while at - self._cuts[0] > WINDOW:
            self._cuts.popleft()
        gone = self._cuts[0] - self._base
        self._text, self._plain = self._text[gone:], self._plain[gone:]
        self._base, self._at = self._base + gone, self._at - gone


def _sentences(text: str) -> list[str]:
    """The text in pieces, one for each sentence or paragraph break."""
    try:
        return sentencex.segment(LANGUAGE, text)  # pyright: ignore[reportAttributeAccessIssue]
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of a library in Rust, and no subclass of Exception
            raise
        log.error("sentence segmentation failed on %d characters", len(text))
        return [text]


def spoken(text: str) -> str:
    """The text as the model gets it: no control characters, single spaces, none at the ends."""
    kept = "".join(c for c in text if c.isspace() or unicodedata.category(c) not in ("Cc", "Cs"))
    return " ".join(kept.split())


def is_speakable(text: str) -> bool:
    """Whether there is anything to say: a letter or a digit of any script."""
    return any(c.isalnum() for c in text)


def is_spaceless(char: str) -> bool:
    """Whether the script of a character writes sentences without spaces between them (Chinese, Japanese)."""
    return (
        "\u2e80" <= char <= "\ua4cf"
        or "\uf900" <= char <= "\ufaff"
        or "\uff00" <= char <= "\uffef"
        or char > "\U0001ffff"
    )


def is_joined(text: str, cut: int) -> bool:
    """Whether a cut would fall inside one visible character (grapheme cluster)."""
    before, after = text[cut - 1], text[cut]
    if unicodedata.category(after)[0] == "M" or after in "\u200c\u200d\u0e33\u0eb3\uff9e\uff9f" or before == "\u200d":
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f" or before + after == "\r\n":
        return True  # skin tones, tag sequences
    if _is_flag_half(before) and _is_flag_half(after):
        run = cut - len(text[:cut].rstrip("".join(map(chr, range(0x1F1E6, 0x1F200)))))
        return run % 2 == 1
    if unicodedata.combining(before) == 9 and after.isalpha():
        return True  # a virama binds the next consonant
    if "\u1160" <= after <= "\u11ff" or "\ud7b0" <= after <= "\ud7fb":
        return True  # vowels and finals of decomposed Hangul
    return ("\u1100" <= before <= "\u115f" or "\ua960" <= before <= "\ua97c") and (
        "\u1100" <= after <= "\u115f" or "\ua960" <= after <= "\ua97c" or "\uac00" <= after <= "\ud7a3"
    )


def _is_flag_half(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_" or unicodedata.category(char)[0] == "M"


def _is_cjk_sentence(sentence: str) -> bool:
    """Ends with a CJK full stop, outside of any quotation: certain without looking further."""
    if _CJK_SENTENCE.search(sentence) is None:
        return False
    marks = sentence.translate(_CJK_OPEN).translate(_CJK_CLOSE)
    return marks.count("(") <= marks.count(")")
