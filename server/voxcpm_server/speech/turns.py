"""The caller's text as turns and segments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from voxcpm_server.speech.characters import is_spaceless, is_speakable
from voxcpm_server.speech.segmenter import Piece, Segmenter
from voxcpm_server.wire.inputs import Segmentation
from voxcpm_server.wire.outputs import Segment

SLICE = 64  # code points that are cut into segments between two turns of the event loop
BURST = 8  # segments, likewise


class Turns:
    """Cuts text into numbered segments; a turn opens with its first text.

    The methods that return segments are async iterators because they let the event loop breathe; exhaust them, and
    call one at a time.
    """

    def __init__(self, segmentation: Segmentation) -> None:
        self._segmentation = segmentation
        self._segmenter = Segmenter(segmentation)
        self._turn = 0
        self._segment = 0
        self._is_open = False
        self._last = ""  # character spoken last
        self.heard = False  # whether any text came, were it empty
        self.chars = 0  # in all
        self.speakable = False  # whether anything of it can be spoken

    @property
    def pending(self) -> int:
        """Code points that wait for the end of their segment."""
        return self._segmenter.pending

    @property
    def max_wait(self) -> float | None:
        """Seconds of a pause after which `pause` is due; None if what waits needs more text."""
        return self._segmenter.max_wait

    @property
    def opened(self) -> int:
        """Turns opened so far."""
        return self._turn + self._is_open

    async def hear(self, text: str) -> AsyncIterator[Segment]:
        """Segments that are complete now that this text followed."""
        self.heard = True
        self._is_open |= bool(text)
        self.chars += len(text)
        self.speakable = self.speakable or is_speakable(text)
        for start in range(0, len(text), SLICE):
            if start:
                await asyncio.sleep(0)
            for segment in self._numbered(self._segmenter.feed(text[start : start + SLICE])):
                yield segment

    def pause(self) -> Iterable[Segment]:
        """The text that waits, now that it has paused for `max_wait`."""
        return self._numbered(self._segmenter.pause())

    async def flush(self) -> AsyncIterator[Segment]:
        """All that waits."""
        for count, segment in enumerate(self._numbered(self._segmenter.flush()), 1):
            yield segment
            if count % BURST == 0:
                await asyncio.sleep(0)

    def end(self) -> None:
        """Close the turn; text that waits is forgotten. The next text opens a new one."""
        if self._is_open:
            self._turn += 1
            self._segment = 0
            self._is_open = False
            self._segmenter = Segmenter(self._segmentation)

    def _numbered(self, pieces: Iterable[Piece]) -> Iterable[Segment]:
        for piece in pieces:
            spaced = piece.spaced
            if self._segment == 0 and self._last:  # the end of a turn parts words as well as a space does
                spaced = not (is_spaceless(self._last) and is_spaceless(piece.text[0]))
            self._last = piece.text[-1]
            yield Segment(
                turn=self._turn,
                index=self._segment,
                text=piece.text,
                spaced=spaced,
                start=piece.start,
                end=piece.end,
                cut=piece.cut,
            )
            self._segment += 1
