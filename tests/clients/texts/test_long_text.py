"""Text of any length is sent as it is spoken, so that the server's limit for waiting text is never exceeded."""

import asyncio
import threading
from collections import deque
from itertools import accumulate

import pytest
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_client import AsyncClient, Cancelled, Client, InvalidArgument
from voxcpm_client.transport import text_window
from voxcpm_client.transport.text_window import FREE_CHARS, LEAST_PART, NO_LIMIT, TextWindow
from voxcpm_grpc.v1 import tts_pb2 as pb

LIMIT = 20_000
BOOK = "".join(f"This is sentence number {number}. " for number in range(4000))


def started(turn: int, end: int) -> list[pb.SegmentEvent]:
    return [pb.SegmentEvent(kind=pb.SEGMENT_EVENT_KIND_STARTED, turn_index=turn, input_end=end)]


def full(window: TextWindow, limit: int = LIMIT) -> bool:
    return limit - LEAST_PART < window.waiting <= limit


class Sender:
    """A window whose server has LIMIT, and the text that it let through."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.questions = 0
        self.parts: deque[str] = deque()
        self._limit = limit
        self.window = TextWindow()
        self.window.was_read = True

    async def _ask(self) -> int:
        self.questions += 1
        return self._limit

    async def _put(self, text: str) -> None:
        self.parts.append(text)

    async def send(self, text: str) -> None:
        await self.window.send(text, self._put, self._ask)

    @property
    def sent(self) -> int:
        return sum(map(len, self.parts))


@pytest.fixture
def sender():
    return Sender()


async def test_text_is_sent_up_to_the_limit_and_then_as_it_is_spoken(sender):
    task = asyncio.create_task(sender.send(BOOK))
    await until(lambda: full(sender.window))
    for end in range(100, 60_000, 7_001):
        sender.window.handle(started(0, end))
        await until(lambda: full(sender.window))
        assert sender.sent == end + sender.window.waiting
    assert all(BOOK[cut - 1 : cut + 1].isalnum() for cut in accumulate(map(len, sender.parts)))  # inside a word
    sender.window.handle(started(0, len(BOOK)))
    await task
    assert "".join(sender.parts) == BOOK
    assert sender.questions == 1


async def test_short_text_needs_no_question_for_the_limit(sender):
    for end in range(20, 2000, 20):
        await sender.send("Twenty characters. .")
        sender.window.handle(started(0, end))
    assert sender.questions == 0
    await sender.send("x" * (FREE_CHARS + 1))
    assert sender.questions == 1


@pytest.mark.parametrize(("text", "waiting"), [("", 0), ("x" * FREE_CHARS, FREE_CHARS)])
def test_a_text_that_any_server_takes_is_taken_as_a_whole(text, waiting):
    window = TextWindow()
    assert window.take(text)
    assert window.waiting == waiting
    window.handle(started(0, len(text)))
    assert window.waiting == 0


def test_a_longer_text_is_not_taken_as_a_whole():
    window = TextWindow()
    assert not window.take("x" * (FREE_CHARS + 1))
    assert window.waiting == 0


async def test_positions_count_from_the_start_of_each_turn(sender):
    await sender.send("a" * 15_000)
    sender.window.end_turn()
    await sender.send("b" * 4_000)
    task = asyncio.create_task(sender.send("c" * 10_000))
    await until(lambda: sender.sent == LIMIT)
    sender.window.handle(started(0, 14_990))
    await until(lambda: sender.sent == 29_000)
    await task
    sender.window.handle(started(1, 10_000))
    assert sender.window.waiting == 4_000
    sender.window.handle(started(0, 15_000))  # late
    assert sender.window.waiting == 4_000


async def test_an_interrupt_drops_the_text_that_waits(sender):
    task = asyncio.create_task(sender.send("a" * 50_000))
    other = asyncio.create_task(sender.send("b" * 50_000))
    await until(lambda: sender.sent == LIMIT)
    sender.window.interrupt()
    await task
    await other
    assert sender.sent == LIMIT
    await sender.send("c" * LIMIT)
    assert "".join(sender.parts) == "a" * LIMIT + "c" * LIMIT
    sender.window.handle(started(0, LIMIT))  # of the turn that was interrupted
    assert sender.window.waiting == LIMIT
    sender.window.handle(started(1, LIMIT))
    assert sender.window.waiting == 0


async def test_two_long_texts_follow_each_other(sender):
    tasks = [asyncio.create_task(sender.send(char * 30_000)) for char in "ab"]
    for end in range(0, 60_001, 5_000):
        sender.window.handle(started(0, end))
        await until(lambda end=end: sender.sent == min(end + LIMIT, 60_000))
    await asyncio.gather(*tasks)
    assert "".join(sender.parts) == "a" * 30_000 + "b" * 30_000


async def test_text_without_words_is_not_waited_for(sender):
    """The server drops it, and no event tells."""
    await sender.send("Hello. " + "\n" * 100_000 + "*** " * 10_000 + "World. ")
    assert 0 < sender.window.waiting < 5_000
    sender.window.handle(started(0, 7))
    await sender.send("And on. ")


async def test_the_end_of_the_stream_ends_the_wait(sender):
    task = asyncio.create_task(sender.send("a" * 50_000))
    await until(lambda: sender.sent == LIMIT)
    sender.window.close()
    with pytest.raises(Cancelled):
        await task


async def test_a_server_without_a_limit_gets_all_at_once():
    sender = Sender(NO_LIMIT)
    await sender.send(BOOK)
    assert sender.sent == len(BOOK)


# ------------------------------------------------------------ through the clients


async def test_a_book_is_spoken(server):
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client:
        speech = await client.say(BOOK)
        assert speech.summary is not None and len(speech.samples) == 160 * len(BOOK)
        async with client.speak(iter([BOOK[:50_000], BOOK[50_000:]])) as stream:
            assert sum([chunk.sample_count async for chunk in stream]) == 160 * len(BOOK)
    assert [call.method for call in server.calls].count("GetModelInfo") == 1
    assert all(call.text == BOOK for call in server.streams)


def test_a_blocking_client_speaks_a_book(server):
    with Client(server.target, timeout=HANG_SECONDS) as client:
        assert len(client.say(BOOK).samples) == 160 * len(BOOK)


@pytest.mark.parametrize("limit", [LIMIT, 6_000])
async def test_no_more_text_is_sent_than_the_server_takes(server, limit):
    server.max_text_chars = limit
    server.hold.clear()
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client, client.speak(BOOK) as stream:
        await until(lambda: full(stream._window, limit))
        server.hold.set()
        await anext(stream)
        await until(lambda: server.streams[-1].text != "" and full(stream._window, limit))


async def test_manual_segmentation_does_not_wait_for_what_only_a_flush_frees(server):
    server.max_text_chars = 10_000
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client:
        speech = await client.say(BOOK, segmentation="manual")
        assert len(speech.samples) == 160 * len(BOOK)
    assert [call.method for call in server.calls] == ["Generate"]


async def test_a_session_that_nothing_reads_takes_no_endless_text(server, monkeypatch):
    monkeypatch.setattr(text_window, "UNREAD_SECONDS", 0.2)
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client, client.session() as session:
        with pytest.raises(InvalidArgument, match=r"\d+ characters wait to be spoken, and nothing reads the audio"):
            await session.send_text(BOOK)


async def test_an_interrupt_drops_the_rest_of_a_text_of_several_messages(server):
    server.hold.clear()
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client, client.session() as session:
        sending = asyncio.create_task(session.send_text(BOOK))
        await until(lambda: full(session._window))
        await session.interrupt()
        await sending  # without room for the rest of it
        assert session._window.waiting == 0
        server.hold.set()


def test_a_session_with_a_reader_takes_text_of_any_length(server):
    with Client(server.target, timeout=HANG_SECONDS) as client, client.session() as session:

        def write() -> None:
            session.send_text(BOOK)
            session.flush(end_turn=True)
            session.send_text(BOOK)
            session.finish()

        writer = threading.Thread(target=write)
        writer.start()
        assert sum(chunk.sample_count for chunk in session) == 2 * 160 * len(BOOK)
        writer.join(HANG_SECONDS)


async def test_a_server_that_does_not_tell_its_limit_is_taken_to_have_the_usual_one(server):
    server.max_text_chars = 0
    server.hold.clear()
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client, client.speak(BOOK) as stream:
        await until(lambda: full(stream._window))


async def test_text_is_not_read_far_ahead_of_the_speech(server):
    """So that a pipe of any length needs little memory."""
    server.hold.clear()
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield "a word " * 100

    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client, client.speak(endless()) as stream:
        await until(lambda: full(stream._window))
        before = 0
        while taken > before:
            before = taken
            await asyncio.sleep(0.2)
        assert 700 * taken < 2 * LIMIT
