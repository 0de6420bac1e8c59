"""The text that a listener has heard, found from the position of the playback."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from voxcpm_server.speech.output import Unsent
from voxcpm_server.speech.words.caller_words import caller_words
from voxcpm_server.text.words.spoken_words import LETTER_SECONDS, weight, weights, word_ends
from voxcpm_server.values.outputs import Heard, Segment, WordTime

MAX_SPANS = 1000  # so many segments are remembered: more than an hour of speech
NOTHING = Heard(turn=0, input_end=0, estimated=False)


@dataclass(frozen=True, slots=True)
class _Span:
    """The audio of a segment.

    begin, end: positions in the stream; `end` is None while the segment is generated
    whole: samples that all of its text takes, an estimate unless `is_whole`
    is_whole: True if all of its text is spoken between `begin` and `end`
    """

    segment: Segment
    begin: int
    end: int | None = None
    whole: float = 0.0
    is_whole: bool = False


class SpokenText:
    """The places of segments in the audio of a stream.

    rate: sample rate of the stream
    native_rate: sample rate of the model
    """

    def __init__(self, rate: int, native_rate: int) -> None:
        self._rate = rate
        self._native_rate = native_rate
        self._spans: deque[_Span] = deque()
        self._forgotten = NOTHING  # the oldest span starts here
        self._samples = self._weight = 0.0  # they sum up all segments that were spoken to their end, at speed 1

    def started(self, segment: Segment, position: int) -> None:
        """The audio of a segment begins at a position of the stream."""
        self._spans.append(_Span(segment, position))
        if len(self._spans) > MAX_SPANS:
            old = self._spans.popleft().segment
            self._forgotten = Heard(turn=old.turn, input_end=old.end, estimated=True)

    def grew(self, segment: Segment) -> None:
        """The text of a segment, if it is the newest one, is this."""
        if self._spans and self._spans[-1].segment.key == segment.key:
            self._spans.append(replace(self._spans.pop(), segment=segment))

    def finished(self, position: int, *, complete: bool) -> float:
        """The audio of the newest segment ends at a position of the stream.

        Returns the samples that all of its text takes.

        complete: False if a limit cut the speech off, perhaps before the end of the text
        """
        span = self._spans.pop()
        samples = position - span.begin
        if complete:
            self._samples += samples * _speed(span)
            self._weight += weight(span.segment.text)
        whole = samples if complete else max(self._expected(span), samples)
        self._spans.append(replace(span, end=position, whole=whole, is_whole=complete))
        return whole

    def limit(self, position: int) -> None:
        """The audio of the newest segment, if it is finished, ends at this position at the latest."""
        if self._spans and (end := self._spans[-1].end) is not None and end > position:
            self._spans.append(replace(self._spans.pop(), end=position))

    def cut(self, position: int, made: int, unsent: Unsent | None = None) -> float:
        """An interrupt: the stream goes on with other audio from a position on.

        Returns the samples that all text of the segment takes that was cut; 0 if none was.

        made: position of the end of the newest segment's audio that was passed to the encoder
        unsent: audio after that, of the newest segment or of a later one
        """
        while self._spans and self._spans[-1].begin >= position:
            self._spans.pop()
        if not self._spans or ((end := self._spans[-1].end) is not None and end <= position):
            return 0.0
        last = self._spans.pop()
        whole = last.whole
        if last.end is None:
            whole = float(made - last.begin)
            rest = unsent if unsent is not None and unsent.segment.key == last.segment.key else None
            if rest is not None:
                whole += rest.samples * self._rate / self._native_rate / _speed(last)
            if rest is None or not rest.finished:
                whole = max(self._expected(last), whole)
        self._spans.append(replace(last, end=position, whole=whole, is_whole=False))
        return whole

    def heard(self, position: int, words: Iterable[WordTime] = ()) -> Heard:
        """The text whose audio lies before a position of the stream, after `cut`.

        It is exact between segments. Within a segment it is the end of a word of the caller: the last one that was
        heard, if its time is known, and otherwise one as if the text that was spoken had an even pace. Text that was
        not spoken is not heard.

        words: the words of the stream whose times are known
        """
        last = next((span for span in reversed(self._spans) if span.begin < position), None)
        if last is None:
            return self._forgotten if position else NOTHING
        segment, end = last.segment, position if last.end is None else last.end
        if last.is_whole and position >= end:
            return Heard(turn=segment.turn, input_end=segment.end, estimated=False)
        known = [word for word in words if (word.turn, word.segment) == (segment.turn, segment.index)]
        return _within(last, min(position, end), known)

    def _expected(self, span: _Span) -> float:
        """The samples that all text of a segment takes at the pace of the stream so far."""
        per_weight = self._samples / self._weight if self._weight else self._rate * LETTER_SECONDS
        return weight(span.segment.text) * per_weight / _speed(span)


def _speed(span: _Span) -> float:
    return span.segment.turn_config.effects.speed


def _within(span: _Span, position: int, known: Sequence[WordTime]) -> Heard:
    """The text of a segment that was heard at a position within it.

    known: its first words, with their times
    """
    segment = span.segment
    ends = [(segment.place(end), passed) for end, passed in _spoken_ends(segment)]
    last, at, passed = segment.start, float(span.begin), 0.0  # what is known ends here
    if known:
        last, at = known[-1].input_end, float(known[-1].end)
        passed = next((passed for end, passed in ends if end >= last), 0.0)
    rest = [(end, passed) for end, passed in ends if end > last]
    if known and (position <= at or not rest):
        heard = [word for word in known if word.start + word.end <= 2 * position]
        is_estimate = known[len(heard) - 1].estimated if heard else known[0].estimated
        return Heard(
            turn=segment.turn, input_end=heard[-1].input_end if heard else segment.place(0), estimated=is_estimate
        )
    left = span.begin + span.whole - at
    share = (position - at) / left if left > 0 else 1.0
    spoken = passed + (weight(segment.text) - passed) * share
    nearest = min([(last, passed), *rest], key=lambda end: abs(end[1] - spoken))
    return Heard(turn=segment.turn, input_end=nearest[0], estimated=True)


def _spoken_ends(segment: Segment) -> Iterator[tuple[int, float]]:
    """The ends of words in the caller's text, each with the weight of the speech up to it."""
    passed = list(accumulate(weights(segment.text), initial=0.0))
    spoken = [0.0, *(passed[end] for end in word_ends(segment.text))]
    for word in caller_words(segment):
        begin, end = spoken[word.last.start], spoken[word.last.stop]
        yield word.end, begin + (end - begin) * word.ends
