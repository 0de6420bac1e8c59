"""Text that is spoken while it arrives, without a wait for the ends of its sentences."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

from voxcpm_server.text.arriving import ArrivingSpelling, Spelled
from voxcpm_server.text.description import description_end
from voxcpm_server.text.lexicon import Lexicon
from voxcpm_server.text.normalize.phonemes import is_in_phonemes
from voxcpm_server.text.segments.sentence_ends import Boundaries
from voxcpm_server.text.words.characters import is_joined, is_mark, is_spaceless, is_speakable
from voxcpm_server.text.words.spoken_words import is_unspaced
from voxcpm_server.values.inputs import Segmentation, TurnConfig
from voxcpm_server.values.outputs import CutReason, Segment
from voxcpm_server.wire.texts import bare_style


class ArrivingText:
    """A text that grows while it is spoken. It is one segment, or several if the model ends the speech early.

    turn, turn_config: number and settings of its turn
    start: its position in the turn
    text: as it is spoken, as far as that is certain
    source: the caller's text so far
    cut: the reason for its end; None while more text may arrive
    on_growth: called with the text that was added
    """

    def __init__(
        self, turn_config: TurnConfig, turn: int, start: int, lexicon: Lexicon, *, spaced: bool, after: str
    ) -> None:
        self.turn_config, self.turn, self.start = turn_config, turn, start
        self.text = self.source = ""
        self.cut: CutReason | None = None
        self.on_growth: Callable[[str], None] = lambda text: None
        self._spelling = ArrivingSpelling(lexicon)
        self._ends: list[int] = []  # each character of `text` has one, in `source`
        self._wholes: list[tuple[int, int]] = []
        self._spaced, self.after = spaced, after
        self._changed = asyncio.Event()

    @property
    def settled(self) -> int:
        """The length of the source whose speech no further text can change."""
        return self._spelling.read

    def leave_out(self, source: str) -> None:
        """Begin with text of the caller that is not spoken."""
        self.source = source
        self._spelling = ArrivingSpelling(self._spelling.lexicon, len(source))

    def add(self, source: str) -> None:
        """Take more text of the caller."""
        self.source += source
        self._grow(self._spelling.feed(source))

    def end(self, cut: CutReason, stop: int | None = None) -> str:
        """No text follows. Returns the source behind the position `stop`, none of which was spoken."""
        stop = len(self.source) if stop is None else stop
        rest, self.source = self.source[stop:], self.source[:stop]
        self.cut = cut
        self._grow(self._spelling.end(stop))
        return rest

    async def speakable(self, begin: int) -> bool:
        """Wait until there is something to speak from a place of the text on; False if there will be nothing."""
        while not is_speakable(self.text[begin:]):
            if self.cut is not None:
                return False
            self._changed.clear()
            await self._changed.wait()
        return True

    async def whole(self) -> None:
        """Wait until no more text follows."""
        while self.cut is None:
            self._changed.clear()
            await self._changed.wait()

    def segment(self, index: int, begin: int, end: int | None = None) -> Segment:
        """The text from a place on as a segment.

        end: where the model has ended the speech; None: it goes on to the end
        """
        start = self._ends[begin - 1] if begin else 0
        known = len(self.text) if end is None else end
        stop = self._ends[known - 1] if known else 0
        if end is None and self.cut is not None:
            stop = len(self.source)
        source = self.source[start:stop]
        return Segment(
            turn=self.turn,
            index=index,
            text=self.text[begin:end].strip(),
            spaced=self.text[begin : begin + 1].isspace() if begin else self._is_spaced(),
            start=self.start + start,
            end=self.start + stop,
            cut=self.cut if end is None else CutReason.UNREAD,
            source=source,
            turn_config=self.turn_config,
            undivided=tuple((one - start, two - start) for one, two in self._wholes if start <= one and two <= stop),
            arrives=True,
        )

    def _is_spaced(self) -> bool:
        if self.after and self.text:  # the end of a turn separates words as a space does
            return not (is_spaceless(self.after) and is_spaceless(self.text[0]))
        return self._spaced or self.source[:1].isspace()

    def _grow(self, spelled: Spelled) -> None:
        self.text += spelled.text
        self._ends += spelled.ends
        self._wholes += spelled.wholes
        self._changed.set()
        if spelled.text or self.cut is not None:
            self.on_growth(spelled.text)


class ArrivingSegmenter:
    """Has the interface of Segmenter, and yields each text when it begins. A text ends at a flush, and when it is long.

    The end of a long text depends on the text up to there alone, as everywhere.

    lexicon: the words that are spoken as if they were written in another way
    """

    max_wait = None  # pauses of the text have no effect

    def __init__(
        self, segmentation: Segmentation, turn_config: TurnConfig, turn: int = 0, *, after: str = "", lexicon: Lexicon
    ) -> None:
        self.turn_config = turn_config
        self._turn, self._lexicon = turn, lexicon
        self._max_chars = segmentation.max_chars
        self._boundaries = Boundaries(segmentation.language)
        self._latest: ArrivingText | None = None
        self._after, self._separated, self._spaced = after, True, False
        self._start = 0  # the next text begins here
        self._held: str | None = "" if turn_config.style_in_text else None  # this text may be a description

    @property
    def last(self) -> str:
        """The last character of the speech so far."""
        return (self._latest.text[-1:] if self._latest is not None else "") or self._after

    @property
    def pending(self) -> int:
        """Code points that wait to become text."""
        return len(self._held or "")

    def feed(self, text: str) -> Iterator[ArrivingText]:
        """Take more text; yields the texts that begin. Must be exhausted."""
        if self._held is not None:
            self._held += text
            described = _described(self._held)
            if described is None:
                return
            yield from self._release(described)
            return
        yield from self._feed(text)

    def pause(self) -> Iterator[ArrivingText]:
        """Nothing: the text waits."""
        return iter(())

    def flush(self) -> Iterator[ArrivingText]:
        """End the open text. Must be exhausted."""
        if self._held:
            yield from self._release(0)
        if self._open is not None:
            self._end(self._open, CutReason.FLUSH)

    def separate(self) -> None:
        """Let the next text begin a new word, after `flush`."""
        self._after, self._separated = self.last, True

    @property
    def _open(self) -> ArrivingText | None:
        return self._latest if self._latest is not None and self._latest.cut is None else None

    def _release(self, described: int) -> Iterator[ArrivingText]:
        """Let the text go that was held, of which the first characters are a description of the style."""
        held, self._held = self._held or "", None
        if described:
            self.turn_config = replace(self.turn_config, style=bare_style(held[:described]))
            begun = self._begin()
            begun.leave_out(held[:described])
            yield begun
        yield from self._feed(held[described:])

    def _begin(self) -> ArrivingText:
        after = self.last if self._separated else ""
        self._after, self._separated = self.last, False
        self._latest = ArrivingText(
            self.turn_config, self._turn, self._start, self._lexicon, spaced=self._spaced, after=after
        )
        return self._latest

    def _feed(self, text: str) -> Iterator[ArrivingText]:
        while text:
            if (open := self._open) is None:
                open = self._begin()
                yield open
            room = self._max_chars - len(open.source)
            if room > 0:
                open.add(text[:room])
                text = text[room:]
            elif (found := self._cut(open, text[0])) is not None:
                text = self._end(open, *found) + text
            else:
                open.add(text[0])
                text = text[1:]

    def _end(self, open: ArrivingText, cut: CutReason, stop: int | None = None) -> str:
        rest = open.end(cut, stop)
        source = open.source
        self._start += len(source)
        if open.text:
            self._spaced = source[-1:].isspace()
        else:  # nothing of it is spoken
            self._spaced = self._spaced or any(map(str.isspace, source))
            self._separated = self._separated or bool(open.after)
        self._boundaries = self._boundaries.after(source)
        return rest

    def _cut(self, open: ArrivingText, following: str) -> tuple[CutReason, int] | None:
        """The end of a text that is long enough, and the reason for it, if the next character makes it certain."""
        source, size = open.source, len(open.source)
        last = source[-1]
        if not last.isalnum() and not is_mark(last):
            end = self._boundaries.before(source, following)
            if end is not None and end >= open.settled and not is_in_phonemes(source, end):
                return CutReason.SENTENCE, end
        if size < 2 * self._max_chars or is_joined(source + following, size) or is_in_phonemes(source, size):
            return None
        between_words = following.isspace() or is_unspaced(last) or is_unspaced(following)
        return (CutReason.LIMIT, size) if between_words or size >= 3 * self._max_chars else None


def _described(text: str) -> int | None:
    """The length of the description that a turn begins with; 0 without one, None if more text decides it."""
    end = description_end(text)
    if end is None or not any(char.isalnum() for char in text):
        return None
    return end if not end or is_speakable(text[end:]) else None
