"""The times of the words of a stream, found by aligners or estimated from the text."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from voxcpm_grpc.request import ModelInfo
from voxcpm_server.aligners.aligner import Timed
from voxcpm_server.aligners.pool import AlignerPool, Outcome, RunningAlignment
from voxcpm_server.speech.words.segment_words import SegmentWords
from voxcpm_server.text.words.spoken_words import words_of
from voxcpm_server.values.inputs import GenerateConfig
from voxcpm_server.values.languages import primary
from voxcpm_server.values.outputs import RequestWarning, Segment, WarningKind, WordTime

MAX_WORDS = 20_000  # words of a summary
SETTLE_SECONDS = 10.0  # seconds to wait for alignments at the end of a stream


class WordTimes:
    """Follows the segments of a stream, one after the other.

    aligners: find the words; None estimates their times
    language: primary subtag of the language of the text; empty if the caller names none
    native_rate, rate: sample rates of the model and of the stream

    `known` has the words so far, the last ones of a long stream.
    """

    def __init__(self, aligners: AlignerPool | None, language: str, *, native_rate: int, rate: int) -> None:
        self._aligners = aligners
        self._language = language
        self._native_rate = native_rate
        self._rate = rate
        self._open: deque[SegmentWords] = deque()  # some words of these segments are not known; they are in order
        self._alignments: dict[SegmentWords, RunningAlignment] = {}
        self._sent = 0
        self._new: list[WordTime] = []
        self._settled = asyncio.Event()
        self.known: deque[WordTime] = deque(maxlen=MAX_WORDS)
        self.on_words: Callable[[], object] = lambda: None
        """The function that is called when the times of more words are known."""
        self._doubts: list[RequestWarning] = []

    @property
    def waiting(self) -> bool:
        """True if `take` has words."""
        return bool(self._new)

    def doubts(self) -> Sequence[RequestWarning]:
        """Warnings about segments that no aligner has taken."""
        return self._doubts

    def take(self, sent: int) -> Sequence[WordTime]:
        """The words whose times have become known since the last call, in order.

        sent: position in the stream up to which audio was sent
        """
        self._sent = sent
        self._report()
        new, self._new = self._new, []
        return new

    def started(self, segment: Segment, turn: int, position: int) -> None:
        """The audio of a segment begins at a position of the stream. turn: number of its turn there"""
        pace = self._rate / segment.turn_config.effects.speed
        words = SegmentWords(segment, turn, position, self._native_rate, pace, at=position)
        self._open.append(words)
        if segment.arrives:
            self._doubt("an aligner needs the text of a segment before its speech")
            return
        if self._aligners is None:
            self._doubt("this server has no aligner; run pip install 'voxcpm-grpc[align]' on the server")
            return
        alignment = self._aligners.begin(
            words_of(segment.text), self._native_rate, self._language, partial(self._on_timed, words)
        )
        if alignment is not None:
            words.listens = True
            self._alignments[words] = alignment

    def grew(self, segment: Segment) -> None:
        """The text of a segment, if it is the newest one, is this."""
        if self._open and self._open[-1].segment.key == segment.key:
            self._open[-1].grow(segment)

    def push(self, samples: np.ndarray, position: int) -> None:
        """Audio of the newest segment, float32 [n] at the rate of the model, which ends at a position of the stream."""
        if not self._open or (words := self._open[-1]).end is not None:
            return  # this audio is not spoken from a text
        words.made += len(samples)
        words.at = position
        if alignment := self._alignments.get(words):
            alignment.push(samples)

    def finished(self, position: int, whole: float, *, complete: bool) -> None:
        """The audio of the newest segment ends at a position of the stream.

        whole: samples that all of its text takes
        complete: False if the speech was cut off, perhaps before the end of the text
        """
        words = self._open[-1]
        self._end(words, max(words.begin, position), whole, complete=complete)
        self._report()

    def cut(self, position: int, whole: float) -> None:
        """An interrupt: the stream goes on with other audio from a position on. whole: as for `finished`"""
        for words in self._open:
            if words.end is None:
                self._end(words, position, whole, complete=False)
            elif words.end > position:
                words.end, words.is_complete = position, False
        self._new = _before(position, self._new)
        beyond: list[WordTime] = []
        while self.known and self.known[-1].end > position:
            beyond.append(self.known.pop())
        self.known += _before(position, reversed(beyond))
        self._report()

    async def settle(self) -> None:
        """Wait until all words are known. Words whose alignment takes too long are estimated."""
        self._settled.clear()
        if self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(SETTLE_SECONDS):
                    await self._settled.wait()
        self.close()
        self._report()

    def close(self) -> None:
        """End the alignments."""
        for alignment in self._alignments.values():
            alignment.close()
        self._alignments.clear()
        for words in self._open:
            words.listens = False

    def _end(self, words: SegmentWords, position: int, whole: float, *, complete: bool) -> None:
        words.end, words.whole, words.is_complete = position, whole, complete
        if alignment := self._alignments.get(words):
            alignment.finish(complete=complete)

    def _on_timed(self, words: SegmentWords, timed: Sequence[Timed], outcome: Outcome) -> None:
        for one in timed:
            words.found.append(one.word)
            words.times[one.word] = one.begin, one.end
        if outcome is not Outcome.GOES_ON:
            words.listens = False
            self._alignments.pop(words, None)
            if outcome is Outcome.REFUSED:
                text = f"language {self._language!r}" if self._language else "language of the text"
                self._doubt(f"no aligner of this server serves the {text}; words.aligners adds one")
        if self._report():
            self.on_words()

    def _doubt(self, cause: str) -> None:
        self._doubts = [RequestWarning(WarningKind.WORD_TIMES, f"the times of words are estimates, because {cause}")]

    def _report(self) -> bool:
        """Add the words that are known now, those of one segment after the other. Returns True if there are any."""
        before = len(self._new)
        while self._open:
            self._new += self._open[0].take(self._sent)
            if not self._open[0].is_settled:
                break
            self._open.popleft()
        else:
            self._settled.set()
        self.known.extend(self._new[before:])
        return len(self._new) > before


def word_times(aligners: AlignerPool | None, config: GenerateConfig, info: ModelInfo) -> WordTimes | None:
    """The times of the words of a stream; None if its config does not ask for them.

    Text without a language is in that of the model, if the model claims to speak one alone.
    """
    if not config.word_timestamps:
        return None
    claimed = {primary(tag) for tag in info.languages}
    language = config.segmentation.language or (claimed.pop() if len(claimed) == 1 else "")
    return WordTimes(aligners, language, native_rate=info.output_sample_rate, rate=config.output.sample_rate)


def _before(position: int, words: Iterable[WordTime]) -> list[WordTime]:
    """The words that begin before a position, up to which they end."""
    return [replace(word, end=min(word.end, position)) for word in words if word.start < position]
