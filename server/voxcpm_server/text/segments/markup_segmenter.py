"""Cuts text with Markdown and HTML, which are not spoken, into segments."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby, takewhile

from voxcpm_server.text.markup.output import Piece
from voxcpm_server.text.markup.remover import MarkupRemover
from voxcpm_server.text.segments.segmenter import DEFAULT_TURN, Segmenter
from voxcpm_server.text.words.characters import is_speakable
from voxcpm_server.values.inputs import Segmentation, TurnConfig
from voxcpm_server.values.outputs import CutReason, Segment


class MarkupSegmenter:
    """Has the interface of Segmenter, which gets the plain text. All positions are those of the caller's text.

    Text that is left out, such as a block of code, is part of the segment around it or a silent segment between others.
    """

    def __init__(
        self, segmentation: Segmentation, turn_config: TurnConfig = DEFAULT_TURN, turn: int = 0, *, after: str = ""
    ) -> None:
        self._segmenter = Segmenter(segmentation, turn_config, turn, after=after)
        self._remover = MarkupRemover()
        self._max_wait = segmentation.max_wait
        self._turn = turn
        self._count = 0  # there are so many segments so far
        self._start = 0  # the last segment ends here
        self._plain = ""  # this plain text waits for the end of its segment
        self._ends: list[int] = []  # each character of it has its end here
        self._length = 0  # characters of all plain text
        self._left_out: deque[tuple[int, int]] = deque()  # positions in the plain text, and ends of what was left out

    @property
    def turn_config(self) -> TurnConfig:
        return self._segmenter.turn_config

    @property
    def last(self) -> str:
        """The last character of the speech so far."""
        return self._segmenter.last

    @property
    def pending(self) -> int:
        """Code points that wait for the end of their segment or for the other half of a mark."""
        return self._segmenter.pending + len(self._remover.held)

    @property
    def max_wait(self) -> float | None:
        """Seconds of a pause after which `pause` is due; None if the waiting text needs more text."""
        own = self._segmenter.max_wait
        if not self._remover.held:
            return own
        ended, then = self._with_held_text()
        return own or self._max_wait or None if ended else then

    def feed(self, text: str) -> Iterator[Segment]:
        """Take more text; yields the segments that are now certain. Must be exhausted."""
        yield from self._feed(self._remover.feed(text))

    def pause(self) -> Iterator[Segment]:
        """The waiting text, after a pause of `max_wait`. Must be exhausted."""
        if self._segmenter.max_wait is None or not self._remover.held or not self._with_held_text()[0]:
            yield from self._feed(self._remover.let_go())
        yield from self._placed(self._segmenter.pause())
        yield from self._silences()

    def flush(self) -> Iterator[Segment]:
        """All waiting text, cut as if no more text follows. Must be exhausted."""
        yield from self._feed(self._remover.let_go())
        yield from self._placed(self._segmenter.flush())
        yield from self._silences(CutReason.FLUSH)

    def separate(self) -> None:
        """Let the next text begin a new word, after `flush`."""
        self._segmenter.separate()

    def _with_held_text(self) -> tuple[bool, float | None]:
        """True if the text that waits for a mark would end a segment before it, and `max_wait` behind that text."""
        trial = copy.copy(self._segmenter)  # its attributes are immutable values
        ended = list(trial.feed(self._remover.held))
        return bool(ended), trial.max_wait

    def _feed(self, pieces: Iterable[Piece]) -> Iterator[Segment]:
        for left_out, group in groupby(pieces, lambda piece: not piece.text):
            if left_out:
                for piece in group:
                    self._left_out.append((self._length, piece.end))
                    yield from self._silences()
                continue
            text = ""
            for piece in group:
                text += piece.text
                self._ends += [piece.end] * len(piece.text)
            self._plain += text
            self._length += len(text)
            yield from self._placed(self._segmenter.feed(text))
            self._forget(len(self._plain) - self._segmenter.pending)
            yield from self._silences()

    def _forget(self, count: int) -> None:
        """Remove the first characters of the plain text that waits."""
        self._plain = self._plain[count:]
        del self._ends[:count]

    def _silences(self, cut: CutReason = CutReason.SENTENCE) -> Iterator[Segment]:
        """A silent segment for text that is left out, unless a segment has begun before it."""
        if self._left_out and not is_speakable(self._plain):
            end = self._left_out[-1][1]
            self._left_out.clear()
            yield self._silence(end, cut)

    def _placed(self, segments: Iterable[Segment]) -> Iterator[Segment]:
        """The segments of the plain text with their places in the caller's text, and silent ones between them."""
        for segment in segments:
            yield from self._silence_before(segment)
            base = self._length - len(self._ends)
            ends = tuple(max(end, self._start) for end in self._ends[segment.start - base : segment.end - base])
            self._forget(segment.end - base)
            end = ends[-1]
            if not self._ends and not self._left_out and not self._remover.held:
                end = self._remover.end  # the marks behind the text belong to it
            start, self._start = self._start, end
            yield replace(segment, index=self._next_index(), start=start, end=end, ends=ends)

    def _silence_before(self, segment: Segment) -> Iterator[Segment]:
        first = segment.start + sum(1 for _ in takewhile(str.isspace, segment.source))
        end = None
        while self._left_out and self._left_out[0][0] < segment.end:
            place, behind = self._left_out.popleft()
            if place <= first:
                end = behind
        if end is not None:
            yield self._silence(end, CutReason.SENTENCE)

    def _silence(self, end: int, cut: CutReason) -> Segment:
        """A segment without text, from the end of the last one."""
        start, self._start = self._start, end
        return Segment(
            turn=self._turn,
            index=self._next_index(),
            text="",
            spaced=False,
            start=start,
            end=end,
            cut=cut,
            source="",
            turn_config=self.turn_config,
        )

    def _next_index(self) -> int:
        self._count += 1
        return self._count - 1
