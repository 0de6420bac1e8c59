"""Cuts text into the segments that the model speaks at once.

Text arrives in messages of any size, and the same text gives the same segments for every division into messages. The
segmenter decides at each character, from the text up to that character alone, whether a segment ends. The borders of
messages have no influence, and a segment is never revised. Only pauses of the text depend on time; the caller measures
the time and calls `pause`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from voxcpm_server.text.description import description_end
from voxcpm_server.text.normalize.phonemes import is_in_phonemes
from voxcpm_server.text.segments.phrases import SHORTEST_LONG, ends_phrase, is_mostly_unspaced, longest_end
from voxcpm_server.text.segments.sentence_ends import Boundaries, clause_ends
from voxcpm_server.text.words.characters import is_joined, is_mark, is_spaceless, is_speakable, spoken
from voxcpm_server.text.words.spoken_words import word_breaks
from voxcpm_server.values.inputs import FirstSegment, Segmentation, SegmentationMode, TurnConfig
from voxcpm_server.values.outputs import CutReason, Segment
from voxcpm_server.wire.texts import bare_style

DOUBTFUL_WAITS = 5  # a pause lasts that many times max_wait if the sentence has not ended for certain
DEFAULT_TURN = TurnConfig()
MEASURED = 8  # code points after which the time that the waiting text takes is estimated anew
_SPACE = re.compile(r"\s")
# `_cut` finds no end behind a letter or a digit, nor behind a space that follows one of ASCII, unless U+2029 follows.
_MAY_END = re.compile(r"[^\w ]|_|(?<![0-9A-Za-z]) | (?=\u2029)")


class Segmenter:
    """Cuts the text of one turn.

    `feed` takes microseconds for each word, so callers on an event loop give it short slices of text.

    turn_config: settings of the turn, for its segments
    turn: number of the turn
    after: last character of the speech before the turn; empty if there is none
    """

    def __init__(
        self, segmentation: Segmentation, turn_config: TurnConfig = DEFAULT_TURN, turn: int = 0, *, after: str = ""
    ) -> None:
        self.turn_config = turn_config
        self.last = after  # the speech so far ends with this character
        self._turn = turn
        self._index = 0
        self._sentences = segmentation.mode is SegmentationMode.SENTENCE
        self._max_chars = segmentation.max_chars
        self._max_wait = segmentation.max_wait
        self._boundaries = Boundaries(segmentation.language)
        self._text = ""  # this text waits for the end of its segment
        self._start = 0  # the text has this position in the turn
        self._spaced = False
        self._separated = True  # the next segment begins a new word
        self._in_clauses = segmentation.first_segment is FirstSegment.EAGER

    @property
    def pending(self) -> int:
        """Code points that wait for the end of their segment."""
        return len(self._text)

    @property
    def max_wait(self) -> float | None:
        """Seconds of a pause after which `pause` is due; None if the waiting text needs more text."""
        if not self._sentences or not self._max_wait or not is_speakable(self._text):
            return None
        speech = self._speech(len(self._text))
        if is_in_phonemes(self._text, len(self._text)) or (speech is not None and not is_speakable(speech)):
            return None
        complete = speech is not None and self._boundaries.is_complete(self._text)
        return self._max_wait * (1 if complete else DOUBTFUL_WAITS)

    def feed(self, text: str) -> Iterator[Segment]:
        """Take more text; yields the segments that are now certain. Must be exhausted."""
        done = len(self._text)
        self._text += text
        if not self._sentences:
            return
        while (stop := self._next_stop(done)) <= len(self._text):
            done = stop
            if (found := self._cut(done)) is not None:
                done -= found[0]
                yield from self._take(*found)

    def pause(self) -> Iterator[Segment]:
        """The waiting text, after a pause of `max_wait`. Must be exhausted."""
        yield from self._take(len(self._text), CutReason.PAUSE)

    def flush(self) -> Iterator[Segment]:
        """All waiting text, cut as if no more text follows. Must be exhausted."""
        while len(self._text.strip()) > self._max_chars:
            yield from self._take(self._split(len(self._text)), CutReason.LIMIT)
        if self._text:
            yield from self._take(len(self._text), CutReason.FLUSH)

    def separate(self) -> None:
        """Let the next text begin a new word, after `flush`."""
        self._separated = True

    def _next_stop(self, done: int) -> int:
        """The least number of code points above `done` with which `_cut` may find an end; it may be beyond the text."""
        if done >= self._max_chars:
            return done + 1
        found = _MAY_END.search(self._text, max(done - 1, 0))
        stop = len(self._text) + 1 if found is None else found.end() + 1
        if not self._text.isascii():
            stop = min(stop, max(SHORTEST_LONG, done + MEASURED) // MEASURED * MEASURED)
        return min(stop, self._max_chars + 1)

    def _cut(self, stop: int) -> tuple[int, CutReason] | None:
        """The end of a segment and the reason for it if the character before `stop` makes it certain."""
        following, last = self._text[stop - 1], self._text[stop - 2] if stop > 1 else " "
        if not last.isalnum() and not is_mark(last):
            before = self._text[: stop - 1]
            end = self._boundaries.before(before, following)
            if end is not None and self._may_end(end):
                return end, CutReason.SENTENCE
            if self._ends_clause(before, following) and self._may_end(len(before)):
                return len(before), CutReason.CLAUSE
        if stop >= SHORTEST_LONG and not stop % MEASURED:
            place = longest_end(self._text[:stop], marked=self._boundaries.marked)
            if place is not None and self._may_end(place):
                return place, CutReason.LIMIT
        if stop > self._max_chars:
            return self._cut_at_limit(stop)
        return None

    def _ends_clause(self, before: str, following: str) -> bool:
        if self._in_clauses and self._boundaries.after_clause(before, following):
            return True
        return (
            before[-1:].isspace()
            and not before.isascii()
            and ends_phrase(before, following, marked=self._boundaries.marked)
        )

    def _may_end(self, end: int) -> bool:
        """True if a segment may end at a place of the waiting text: it is speakable, and cuts no description."""
        speech = self._speech(end)
        return speech is not None and is_speakable(speech) and not is_in_phonemes(self._text, end)

    def _speech(self, end: int) -> str | None:
        """The text up to a place, without the description that steers its turn.

        None if the turn begins with a description that has not ended before that place.
        """
        described = 0 if self._index else description_end(self._text[:end])
        if described is None:
            return None
        return self._text[described if self.turn_config.style_in_text else 0 : end]

    def _cut_at_limit(self, stop: int) -> tuple[int, CutReason] | None:
        first = _first_visible(self._text[:stop])
        if first > self._max_chars:  # white space that stayed would be searched again by every later word
            return first, CutReason.LIMIT
        spare = (
            self._max_chars if self._text[stop - 1].isspace() else 0
        )  # the next word may show that a sentence ends here
        if stop - first > self._max_chars + spare:
            return self._split(stop), CutReason.LIMIT
        return None

    def _split(self, stop: int) -> int:
        """The best place to cut text that is too long: at most `max_chars` after its first visible character."""
        text = self._text[:stop]
        first = _first_visible(text)
        last = first + self._max_chars
        places = [] if self._sentences else self._last_sentence_end(first, last)
        places = places or self._outside_phonemes(end for end in clause_ends(text, first, last + 1) if end <= last)
        if not places or places[-1] - first < self._max_chars // 4:  # a very short segment would be the result
            spaces = (space.start() for space in _SPACE.finditer(text, first, last + 1))
            places = self._outside_phonemes(spaces) or places
        if not places and is_mostly_unspaced(text):
            places = self._outside_phonemes(at for at in word_breaks(text) if first < at <= last)
        if places:
            return places[-1]
        return next((cut for cut in range(last, first, -1) if not is_joined(text, cut)), last)

    def _outside_phonemes(self, places: Iterable[int]) -> list[int]:
        return [at for at in places if not is_in_phonemes(self._text, at)]

    def _last_sentence_end(self, first: int, last: int) -> list[int]:
        """The last end of a sentence in text[first:last], or nothing. For manual mode, which does not cut sentences."""
        for at in range(last, first, -1):
            if not self._text[at - 1].isalnum():
                end = self._boundaries.before(self._text[first:at], self._text[at])
                if end is not None and is_speakable(self._text[first : first + end]):
                    return [first + end]
        return []

    def _take(self, cut: int, reason: CutReason) -> Iterator[Segment]:
        """Remove the text up to `cut` and yield it as a segment if it can be spoken."""
        raw, start, speech = self._text[:cut], self._start, self._speech(cut)
        self._text, self._start = self._text[cut:], start + cut
        spaced = self._spaced or raw[:1].isspace()
        if not is_speakable(raw):
            self._spaced = spaced or _SPACE.search(raw) is not None
            return
        text, turn_config = spoken(raw), self.turn_config
        if speech is not None and speech != raw and is_speakable(speech):
            text = spoken(speech)
            turn_config = replace(turn_config, style=bare_style(raw.removesuffix(speech)))
        if self._separated and self.last:  # the end of a turn separates words as a space does
            spaced = not (is_spaceless(self.last) and is_spaceless(text[0]))
        self._spaced = raw[-1:].isspace()
        self._boundaries = self._boundaries.after(raw)
        self._in_clauses = self._in_clauses and reason in (CutReason.CLAUSE, CutReason.LIMIT)
        self._separated = False
        index, self._index = self._index, self._index + 1
        self.last = text[-1]
        end = start + len(raw)
        yield Segment(
            turn=self._turn,
            index=index,
            text=text,
            spaced=spaced,
            start=start,
            end=end,
            cut=reason,
            source=raw,
            turn_config=turn_config,
        )


def _first_visible(text: str) -> int:
    return len(text) - len(text.lstrip())
