"""The text that a listener has heard, found from the position of the playback."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from voxcpm_server.speech.alignment import aligned
from voxcpm_server.speech.queues import Unsent
from voxcpm_server.speech.spoken_words import weight, weights, word_ends
from voxcpm_server.wire.outputs import Heard, Segment

MAX_SPANS = 1000  # segments that are remembered, more than an hour of speech
LETTER_SECONDS = 0.07  # of speech, until a stream has segments to measure
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
        self._forgotten = NOTHING  # at the start of the oldest span
        self._samples = self._weight = 0.0  # of all segments that were spoken to their end, at speed 1

    def started(self, segment: Segment, position: int) -> None:
        """The audio of a segment begins at a position of the stream."""
        self._spans.append(_Span(segment, position))
        if len(self._spans) > MAX_SPANS:
            old = self._spans.popleft().segment
            self._forgotten = Heard(turn=old.turn, input_end=old.end, estimated=True)

    def finished(self, position: int, *, complete: bool) -> None:
        """The audio of the newest segment ends at a position of the stream.

        complete: False if a limit cut the speech off, perhaps before the end of the text
        """
        span = self._spans.pop()
        samples = position - span.begin
        if complete:
            self._samples += samples * _speed(span)
            self._weight += weight(span.segment.text)
        whole = samples if complete else max(self._expected(span), samples)
        self._spans.append(replace(span, end=position, whole=whole, is_whole=complete))

    def limit(self, position: int) -> None:
        """The audio of the newest segment, if it is finished, ends at this position at the latest."""
        if self._spans and (end := self._spans[-1].end) is not None and end > position:
            self._spans.append(replace(self._spans.pop(), end=position))

    def cut(self, position: int, made: int, unsent: Unsent | None = None) -> None:
        """An interrupt: the stream goes on with other audio from a position on.

        made: position of the end of the newest segment's audio that was passed to the encoder
        unsent: audio after that, of the newest segment or of a later one
        """
        while self._spans and self._spans[-1].begin >= position:
            self._spans.pop()
        if not self._spans or ((end := self._spans[-1].end) is not None and end <= position):
            return
        last = self._spans.pop()
        whole = last.whole
        if last.end is None:
            whole = float(made - last.begin)
            rest = unsent if unsent is not None and unsent.segment is last.segment else None
            if rest is not None:
                whole += rest.samples * self._rate / self._native_rate / _speed(last)
            if rest is None or not rest.finished:
                whole = max(self._expected(last), whole)
        self._spans.append(replace(last, end=position, whole=whole, is_whole=False))

    def heard(self, position: int) -> Heard:
        """The text whose audio lies before a position of the stream, after `cut`.

        It is exact between segments. Within a segment it is the end of a word of the caller, as if the text that was
        spoken had an even pace. Text that was not spoken is not heard.
        """
        last = next((span for span in reversed(self._spans) if span.begin < position), None)
        if last is None:
            return self._forgotten if position else NOTHING
        segment, end = last.segment, position if last.end is None else last.end
        if last.is_whole and position >= end:
            return Heard(turn=segment.turn, input_end=segment.end, estimated=False)
        spoken = weight(segment.text) * (min(position, end) - last.begin) / last.whole
        return Heard(turn=segment.turn, input_end=segment.place(_word_end(segment, spoken)), estimated=True)

    def _expected(self, span: _Span) -> float:
        """The samples that all text of a segment takes at the pace of the stream so far."""
        per_weight = self._samples / self._weight if self._weight else self._rate * LETTER_SECONDS
        return weight(span.segment.text) * per_weight / _speed(span)


def _speed(span: _Span) -> float:
    return span.segment.turn_config.effects.speed


def _word_end(segment: Segment, spoken: float) -> int:
    """The end of a word in the caller's text that is nearest to a weight; 0 if that is the start of the text."""
    ends = [(0, 0.0), *_spoken_ends(segment)]
    return min(ends, key=lambda end: abs(end[1] - spoken))[0]


def _spoken_ends(segment: Segment) -> Iterator[tuple[int, float]]:
    """The ends of words in the caller's text, each with the weight of the speech up to it.

    Among words that are spoken as others the speech is divided by their own weights.
    """
    passed = list(accumulate(weights(segment.text), initial=0.0))
    spoken = [0.0, *(passed[end] for end in word_ends(segment.text))]
    written = list(accumulate(weights(segment.source), initial=0.0))
    ends = [0, *word_ends(segment.source)]
    for words, said in aligned(segment.source, segment.text):
        begin, length = spoken[said.start], spoken[said.stop] - spoken[said.start]
        before = written[ends[words.start]]
        whole = written[ends[words.stop]] - before
        for word in words:
            end = ends[word + 1]
            if not any(start < end < stop for start, stop in segment.undivided):
                yield end, begin + (length * (written[end] - before) / whole if whole else length)
