"""The words of one segment, with their places in the audio of its stream."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from voxcpm_server.speech.words.caller_words import CallerWord, caller_words
from voxcpm_server.text.words.spoken_words import is_pronounced, weights, word_ends, words_of
from voxcpm_server.values.outputs import Segment, WordTime


@dataclass(eq=False)
class SegmentWords:
    """The words of a segment, from the start of its audio on.

    turn: number of its turn in the stream
    begin, end: positions in the stream; `end` is None while the segment is generated
    whole: samples of the stream that all of its text takes, once `end` is known
    made: samples that were made so far, at the rate of the model, which reach up to the position `at`
    native_rate: sample rate of the model
    pace: samples of the stream for each second of the model's audio
    found: numbers of the spoken words that an aligner has found, in order; `times` has the seconds from the start of
        the model's audio at which they begin and end
    sent: the number of the caller's words that were taken
    listens: True if an aligner may find more words
    is_complete: True if all of the text is spoken, up to `end`
    """

    segment: Segment
    turn: int
    begin: int
    native_rate: int
    pace: float
    end: int | None = None
    whole: float = 0.0
    made: int = 0
    at: int = 0
    found: list[int] = field(default_factory=list[int])
    times: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    sent: int = 0
    listens: bool = False
    is_complete: bool = False

    @cached_property
    def words(self) -> Sequence[CallerWord]:
        """The words of the caller for which something is pronounced."""
        return [word for word in caller_words(self.segment) if any(self.pronounced[word.first.start : word.last.stop])]

    @cached_property
    def pronounced(self) -> Sequence[bool]:
        """One entry for each spoken word, True if it is more than marks."""
        return [is_pronounced(word) for word in words_of(self.segment.text)]

    @cached_property
    def passed(self) -> Sequence[float]:
        """The weight of the speech before each spoken word, and of all of it."""
        passed = list(accumulate(weights(self.segment.text), initial=0.0))
        return [0.0, *(passed[end] for end in word_ends(self.segment.text))]

    def grow(self, segment: Segment) -> None:
        """Its text is that of this segment."""
        self.segment = segment
        for name in ("words", "pronounced", "passed"):
            self.__dict__.pop(name, None)

    @property
    def is_settled(self) -> bool:
        """True if the times of all words are known."""
        return self.end is not None and not self.listens

    def take(self, sent: int) -> Iterator[WordTime]:
        """The words whose times are known, and which were not taken before.

        sent: position in the stream up to which audio was sent; the positions of what follows may change, because
            silence before it may be left out
        """
        if not self.is_settled and not self.found:
            return
        certain = len(self.passed) if self.is_settled else self.found[-1] + 1 if self.found else 0
        while self.sent < len(self.words) and self.words[self.sent].last.stop <= certain:
            word = self.words[self.sent]
            start, end, estimated = self._times(word)
            if start >= sent and not self.is_settled:
                return
            self.sent += 1
            limit = self.at if self.end is None else self.end
            start, end = (round(min(max(one, self.begin), limit)) for one in (start, end))
            if start < limit or self.is_complete:
                yield WordTime(
                    turn=self.turn,
                    segment=self.segment.index,
                    text=self.segment.source[word.start : word.end],
                    input_start=self.segment.place_of(word.start),
                    input_end=self.segment.place(word.end),
                    start=start,
                    end=end,
                    estimated=estimated,
                )

    def _times(self, word: CallerWord) -> tuple[float, float, bool]:
        """The positions of a word in the stream, and True if they are estimated."""
        spoken = [one for one in range(word.first.start, word.last.stop) if self.pronounced[one]]
        first = [one for one in spoken if one in word.first] or spoken
        last = [one for one in spoken if one in word.last] or spoken
        start = self._within(first, word.begins)
        end = self._within(last, word.ends)
        found = first[0] in self.times and last[-1] in self.times
        return start, end, not found or word.begins > 0 or word.ends < 1

    def _within(self, spoken: Sequence[int], share: float) -> float:
        begin, end = self._edge(spoken[0], 0), self._edge(spoken[-1], 1)
        return begin + (end - begin) * share

    def _edge(self, spoken: int, side: int) -> float:
        """The position at which a spoken word begins (0) or ends (1).

        One that was not found has its share, by its weight, of the speech between those that were.
        """
        if spoken in self.times:
            return self._position(spoken, side)
        following = bisect_left(self.found, spoken)
        weight, at = 0.0, float(self.begin)
        if following:
            before = self.found[following - 1]
            weight, at = self.passed[before + 1], self._position(before, 1)
        if following < len(self.found):
            after = self.found[following]
            next_weight, next_at = self.passed[after], self._position(after, 0)
        else:
            next_weight = self.passed[-1]
            rest = (next_weight - weight) / next_weight * self.whole
            next_at = self.end if self.is_complete and self.end is not None else at + rest
        if next_weight == weight:
            return at
        return at + (next_at - at) * (self.passed[spoken + side] - weight) / (next_weight - weight)

    def _position(self, found: int, side: int) -> float:
        """The position at which a word that was found begins (0) or ends (1)."""
        return self.at - (self.made / self.native_rate - self.times[found][side]) * self.pace
