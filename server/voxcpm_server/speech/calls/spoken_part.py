"""A segment whose text arrives while it is spoken."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from voxcpm_grpc.events import Event, Finished
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_server.text.segments.arriving_text import ArrivingText
from voxcpm_server.text.words.characters import is_speakable
from voxcpm_server.values.outputs import Segment


class SpokenPart:
    """Passes a text, from a place on, to the call that speaks it.

    index: number of the segment in its turn
    begin: the place in the text
    on_growth: called with the segment, now and when it has grown
    on_end: called when no more text follows
    end: after `finish`, the place where the next part begins
    """

    def __init__(self, arriving: ArrivingText, index: int, begin: int, on_growth: Callable[[Segment], object]) -> None:
        self._arriving, self._index, self._begin, self._on_growth = arriving, index, begin, on_growth
        self._call: EngineCall[Event] | None = None
        self._before = 0  # characters of the request in front of the text of the segment
        self.segment = arriving.segment(index, begin)
        self.on_end: Callable[[], object] = lambda: None
        self.end = begin
        arriving.on_growth = self._grow
        on_growth(self.segment)

    def may_grow(self) -> bool:
        """True if more text may follow."""
        return self._arriving.cut is None

    def begun(self, text: str) -> str:
        """The text of a request that ends with that of the segment, and with the space behind it, which ends a word."""
        self._before = len(text) - len(self.segment.text)
        known = self._arriving.text
        return text + known[len(known.rstrip()) :] if self.may_grow() else text

    def attach(self, call: EngineCall[Event]) -> None:
        """Pass what follows to the call of this request."""
        self._call = call

    def detach(self) -> None:
        """Pass nothing more on."""
        self._arriving.on_growth = lambda text: None
        self._call = None

    def finish(self, finished: Finished) -> Segment:
        """The segment with the text that the model has read. What it has not read is the next part."""
        self.detach()
        text = self._arriving.text
        begin = self._begin + len(text[self._begin :]) - len(text[self._begin :].lstrip())
        known = text[begin : begin + max(1, finished.characters - self._before)]
        read = begin + len(known.rstrip()) - len(finished.unread.rstrip())
        read = read if read > begin else self._begin
        goes_on = self.may_grow() or is_speakable(text[read:])
        self.end = read if goes_on else len(text)
        self.segment = self._arriving.segment(self._index, self._begin, read if goes_on else None)
        self._on_growth(self.segment)
        return self.segment

    def _grow(self, text: str) -> None:
        self.segment = self._arriving.segment(self._index, self._begin)
        self._on_growth(self.segment)
        if self._call is not None:
            self._call.append(text, last=not self.may_grow())
        if not self.may_grow():
            self.on_end()


def segments_of(texts: Iterable[tuple[ArrivingText, int]], numbers: tuple[int, int]) -> Sequence[Segment]:
    """The segments that begin at places of texts, one after the other. numbers: as for `next_number`"""
    found = list[Segment]()
    for arriving, begin in texts:
        if is_speakable(arriving.text[begin:]):
            turn, number = next_number(numbers, arriving.turn)
            found.append(arriving.segment(number, begin))
            numbers = turn, number + 1
    return found


def next_number(numbers: tuple[int, int], turn: int) -> tuple[int, int]:
    """A turn and the number of its next segment. numbers: those of the latest segment's turn"""
    return numbers if numbers[0] == turn else (turn, 0)
