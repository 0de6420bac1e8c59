"""The caller's text as turns and segments."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

from voxcpm_server.speech.characters import is_speakable
from voxcpm_server.speech.markup_segmenter import MarkupSegmenter
from voxcpm_server.speech.segmenter import Segmenter
from voxcpm_server.wire.inputs import Segmentation, TurnConfig
from voxcpm_server.wire.outputs import Segment

SLICE = 64  # code points that are cut into segments in one callback of the event loop
BURST = 8  # segments that a flush yields in one callback


class Turns:
    """Cuts text into segments; a turn opens with its first text or pause.

    The methods that return segments are async iterators because they yield to the event loop. Exhaust each of them
    before the next call.
    """

    def __init__(self, segmentation: Segmentation, config: TurnConfig) -> None:
        self.config = config  # of the turns that open from now on
        self._segmentation = segmentation
        self._segmenter: Segmenter | MarkupSegmenter = Segmenter(segmentation, config)  # of the latest turn
        self._is_open = False
        self.opened = 0  # turns opened so far
        self.has_text = False  # True after any text message, even an empty one
        self.speakable = False  # True if any of the text can be spoken
        self.chars = 0  # code points of all text

    @property
    def configs(self) -> tuple[TurnConfig, ...]:
        """The settings of the open turn and of those that open from now on."""
        return (self._segmenter.turn_config, self.config) if self._is_open else (self.config,)

    @property
    def pending(self) -> int:
        """Code points that wait for the end of their segment."""
        return self._segmenter.pending

    @property
    def max_wait(self) -> float | None:
        """Seconds of a pause after which `pause` is due; None if the waiting text needs more text."""
        return self._segmenter.max_wait

    async def feed(self, text: str) -> AsyncIterator[Segment]:
        """Take more text; yields the segments that are now complete."""
        self.has_text = True
        if text:
            self._open()
        self.chars += len(text)
        self.speakable = self.speakable or is_speakable(text)
        for start in range(0, len(text), SLICE):
            if start:
                await asyncio.sleep(0)
            for segment in self._segmenter.feed(text[start : start + SLICE]):
                yield segment

    def pause(self) -> Iterable[Segment]:
        """The waiting text, after a pause of `max_wait`."""
        return self._segmenter.pause()

    async def flush(self) -> AsyncIterator[Segment]:
        """All waiting text."""
        for count, segment in enumerate(self._segmenter.flush(), 1):
            yield segment
            if count % BURST == 0:
                await asyncio.sleep(0)

    def separate(self) -> int:
        """Open a turn if none is open, and let the next text begin a new word. Returns the number of the turn."""
        self._open()
        self._segmenter.separate()
        return self.opened - 1

    def _open(self) -> None:
        if not self._is_open:
            self._is_open = True
            kind = MarkupSegmenter if self.config.normalize else Segmenter
            self._segmenter = kind(self._segmentation, self.config, self.opened, after=self._segmenter.last)
            self.opened += 1

    def end(self) -> None:
        """Close the turn and discard waiting text. The next text opens a new turn."""
        if self._is_open:
            self._is_open = False
            self._segmenter = Segmenter(self._segmentation, self.config, after=self._segmenter.last)
