"""Flow control for text: the server takes a limited number of characters ahead of the speech."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from voxcpm_client.errors import Cancelled, InvalidArgument
from voxcpm_grpc.v1 import tts_pb2 as pb

FREE_CHARS = 400  # characters that any server takes, sent before its limit is known
LEAST_PART = 64  # characters; less room is not used, unless the text is shorter
BLOCK_CHARS = 1024
NO_LIMIT = 1 << 62
UNREAD_SECONDS = 10.0  # a session that nothing reads for so long is taken for a mistake


class TextWindow:
    """The text of one stream that was sent and is not spoken yet, in Unicode code points.

    The server refuses text beyond its limit. Segment events name the text that is spoken: `input_end` counts from the
    start of its turn. The window never counts less than the server, except in text without words: the server drops
    blocks without letters and digits, for which no event comes.
    """

    def __init__(self) -> None:
        self._limit: int | None = None
        self._blocks: deque[_Block] = deque()
        self._sent = 0  # characters of the stream
        self._spoken = 0
        self._turns: dict[int, int] = {}  # the values are positions in the stream
        self._opened = 0
        self._is_open = False
        self.interrupts = 0
        self._moved = asyncio.Event()
        self._order = asyncio.Lock()  # one long text follows the other
        self._closed = False
        self.was_read = False  # while nothing has read the audio, room may never become free

    @property
    def waiting(self) -> int:
        """Text that was sent and is not spoken."""
        return sum(block.waiting(self._spoken) for block in self._blocks)

    async def send(
        self, text: str, put: Callable[[str], Awaitable[None]], ask_limit: Callable[[], Awaitable[int]]
    ) -> None:
        """Pass `text` to `put` in parts, as room becomes free. An interrupt drops the rest.

        ask_limit: returns the limit of the server; called once, if the text gets longer than FREE_CHARS

        Raises Cancelled after `close`, and InvalidArgument if nothing reads the stream, which would never make room.
        """
        interrupts = self.interrupts
        async with self._order:
            while text and interrupts == self.interrupts:
                cut = _cut(text, await self._room(min(len(text), LEAST_PART), interrupts, ask_limit))
                part, text = text[:cut], text[cut:]
                if part:
                    self._add(part)
                    await put(part)

    def take(self, text: str) -> bool:
        """True if any server takes all of the first text of a stream at once. It counts as sent then."""
        if len(text) > FREE_CHARS:
            return False
        if text:
            self._add(text)
        return True

    def open_turn(self) -> None:
        """Open a turn, as text and pauses do, unless one is open."""
        if not self._is_open:
            self._is_open = True
            self._turns[self._opened] = self._sent
            self._opened += 1

    def end_turn(self) -> None:
        """The next text or pause opens a new turn."""
        self._is_open = False

    def interrupt(self) -> None:
        """All text is dropped, on the server and here."""
        self.interrupts += 1
        self._spoken = self._sent
        self._blocks.clear()
        self.end_turn()
        self._moved.set()

    def handle(self, events: Iterable[pb.SegmentEvent]) -> None:
        """Free the text of segments that the server has started."""
        for event in events:
            for turn in [turn for turn in self._turns if turn < event.turn_index]:
                del self._turns[turn]  # turns are spoken in order
            start = self._turns.get(event.turn_index)
            if start is not None and start + event.input_end > self._spoken:
                self._spoken = start + event.input_end
                self._moved.set()
        while len(self._blocks) > 1 and self._blocks[1].start <= self._spoken:
            self._blocks.popleft()

    def close(self) -> None:
        """Send no more text: `send` raises Cancelled."""
        self._closed = True
        self._moved.set()

    async def _room(self, least: int, interrupts: int, ask_limit: Callable[[], Awaitable[int]]) -> int:
        """Characters that may be sent now, at least `least`; 0 after an interrupt."""
        while interrupts == self.interrupts:
            if self._closed:
                raise Cancelled("the stream takes no more text: it was finished or closed")
            room = (self._limit or FREE_CHARS) - self.waiting
            if room >= least:
                return room
            if self._limit is None:
                self._limit = await ask_limit()
            else:
                await self._wait()
        return 0

    async def _wait(self) -> None:
        self._moved.clear()
        if self.was_read:
            await self._moved.wait()
            return
        try:
            await asyncio.wait_for(self._moved.wait(), UNREAD_SECONDS)
        except TimeoutError:
            if not self.was_read:
                raise InvalidArgument(
                    f"{self.waiting} characters wait to be spoken, and nothing reads the audio; "
                    "send long texts in one task and read the stream in another",
                    field="text",
                ) from None

    def _add(self, text: str) -> None:
        self.open_turn()
        while text:
            if not self._blocks or self._blocks[-1].is_full:
                self._blocks.append(_Block(self._sent, self._blocks[-1] if self._blocks else None))
            taken = self._blocks[-1].add(text)
            self._sent += taken
            text = text[taken:]


def _cut(text: str, room: int) -> int:
    """The place to cut a text that is sent in parts: inside a word, so that the server takes no pause for its end."""
    if room >= len(text):
        return len(text)
    inside = (cut for cut in range(room, max(0, room - LEAST_PART), -1) if text[cut - 1 : cut + 1].isalnum())
    return next(inside, room)


class _Block:
    """BLOCK_CHARS of the text. A full block that has no letter or digit, as the one before it, does not count."""

    def __init__(self, start: int, before: _Block | None) -> None:
        self.start = start
        self._chars = 0
        self._has_words = False
        self._follows_words = before is None or before._has_words

    @property
    def is_full(self) -> bool:
        return self._chars >= BLOCK_CHARS

    def add(self, text: str) -> int:
        """Take as much of `text` as fits. Returns the number of characters."""
        part = text[: BLOCK_CHARS - self._chars]
        self._chars += len(part)
        self._has_words = self._has_words or any(char.isalnum() for char in part)
        return len(part)

    def waiting(self, spoken: int) -> int:
        """Characters after the position `spoken` that count."""
        if self.is_full and not self._has_words and not self._follows_words:
            return 0
        return max(0, self.start + self._chars - max(self.start, spoken))
