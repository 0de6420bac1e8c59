"""The segmenter: cuts text into pieces that the model speaks at once.

Text arrives in pieces of any size, and the same text must give the same segments however it was cut. So whether a
segment ends is decided at positions that the text itself defines, from the text before that position alone: the
messages' borders never enter, and what was emitted for a prefix is never revised. Only pauses of the text depend on
time; whoever keeps the time calls `pause`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from voxcpm_server.speech.characters import is_joined, is_speakable, spoken
from voxcpm_server.speech.sentence_ends import Boundaries, Ending, clause_ends
from voxcpm_server.wire.inputs import FirstSegment, Segmentation, SegmentationMode
from voxcpm_server.wire.outputs import CutReason

DOUBTFUL_WAITS = 5  # pauses of max_wait, where it is in doubt whether a sentence has ended
_SPACE = re.compile(r"\s")


@dataclass(frozen=True, slots=True)
class Piece:
    """Clean text and its range of the turn's input; `spaced` if whitespace stands before it in the input."""

    text: str
    spaced: bool
    start: int
    end: int
    cut: CutReason


class Segmenter:
    """Cuts one turn.

    `feed` costs microseconds for each word; callers on an event loop hand it short pieces.
    """

    def __init__(self, segmentation: Segmentation) -> None:
        self._sentences = segmentation.mode is SegmentationMode.SENTENCE
        self._max_chars = segmentation.max_chars
        self._max_wait = segmentation.max_wait
        self._boundaries = Boundaries(segmentation.language)
        self._text = ""  # what waits
        self._start = 0  # its position in the turn
        self._spaced = False
        self._in_clauses = segmentation.first_segment is FirstSegment.EAGER

    @property
    def pending(self) -> int:
        """Code points that wait for the end of their segment."""
        return len(self._text)

    @property
    def max_wait(self) -> float | None:
        """Seconds of a pause after which `pause` is due; None if what waits needs more text."""
        if not self._sentences or not self._max_wait or not is_speakable(self._text):
            return None
        match self._boundaries.ending(self._text):
            case Ending.COMPLETE:
                return self._max_wait
            case Ending.DOUBTFUL:
                return DOUBTFUL_WAITS * self._max_wait
        return None

    def feed(self, text: str) -> Iterator[Piece]:
        """Take more text; yields the segments that are now certain. Must be exhausted."""
        done = len(self._text)
        self._text += text
        if not self._sentences:
            return
        while done < len(self._text):
            done += 1
            if (found := self._cut(done)) is not None:
                done -= found[0]
                yield from self._take(*found)

    def pause(self) -> Iterator[Piece]:
        """Everything that waits, when the text has paused for `max_wait`. Must be exhausted."""
        yield from self._take(len(self._text), CutReason.PAUSE)

    def flush(self) -> Iterator[Piece]:
        """Everything that waits, cut as if no more followed. Must be exhausted."""
        while len(self._text.strip()) > self._max_chars:
            yield from self._take(self._split(len(self._text)), CutReason.LIMIT)
        if self._text:
            yield from self._take(len(self._text), CutReason.FLUSH)

    def _cut(self, stop: int) -> tuple[int, CutReason] | None:
        """The end of a segment, and the reason for it, now that the character before `stop` is known."""
        following, last = self._text[stop - 1], self._text[stop - 2] if stop > 1 else " "
        if not last.isalnum():
            before = self._text[: stop - 1]
            end = self._boundaries.before(before, following)
            if end is not None and is_speakable(before[:end]):
                return end, CutReason.SENTENCE
            if self._in_clauses and self._boundaries.after_clause(before, following):
                return len(before), CutReason.CLAUSE
        if stop > self._max_chars:
            return self._cut_at_limit(stop)
        return None

    def _cut_at_limit(self, stop: int) -> tuple[int, CutReason] | None:
        first = _first_visible(self._text[:stop])
        if first > self._max_chars:  # white space; kept, it would be looked at again with every word behind it
            return first, CutReason.LIMIT
        spare = self._max_chars if self._text[stop - 1].isspace() else 0  # the next word may show that this is an end
        if stop - first > self._max_chars + spare:
            return self._split(stop), CutReason.LIMIT
        return None

    def _split(self, stop: int) -> int:
        """The best place to cut text that is too long: at most `max_chars` after its first visible character."""
        text = self._text[:stop]
        first = _first_visible(text)
        last = first + self._max_chars
        places = [] if self._sentences else self._last_sentence_end(first, last)
        places = places or [end for end in clause_ends(text, first, last + 1) if end <= last]
        if not places or places[-1] - first < self._max_chars // 4:  # a stub in front of a long rest helps nobody
            places = [space.start() for space in _SPACE.finditer(text, first, last + 1)] or places
        if places:
            return places[-1]
        return next((cut for cut in range(last, first, -1) if not is_joined(text, cut)), last)

    def _last_sentence_end(self, first: int, last: int) -> list[int]:
        """The last end of a sentence in text[first:last], if there is one, of text that was not cut while it came."""
        for at in range(last, first, -1):
            if not self._text[at - 1].isalnum():
                end = self._boundaries.before(self._text[first:at], self._text[at])
                if end is not None and is_speakable(self._text[first : first + end]):
                    return [first + end]
        return []

    def _take(self, cut: int, reason: CutReason) -> Iterator[Piece]:
        """Emit the text up to `cut`, unless nothing of it can be spoken."""
        raw, start = self._text[:cut], self._start
        self._text, self._start = self._text[cut:], start + cut
        spaced = self._spaced or raw[:1].isspace()
        if is_speakable(raw):
            self._spaced = raw[-1:].isspace()
            self._in_clauses = self._in_clauses and reason in (CutReason.CLAUSE, CutReason.LIMIT)
            yield Piece(spoken(raw), spaced, start, start + len(raw), reason)
        else:
            self._spaced = spaced or _SPACE.search(raw) is not None


def _first_visible(text: str) -> int:
    return len(text) - len(text.lstrip())
