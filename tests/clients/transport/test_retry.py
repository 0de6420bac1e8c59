import asyncio
import math
import socket
import time
from contextlib import suppress

import grpc
import numpy as np
import pytest
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_client import (
    DEFAULT_RETRY_SECONDS,
    AsyncClient,
    DeadlineExceeded,
    Exhausted,
    InternalError,
    NotFound,
    SpeechError,
    Unavailable,
)
from voxcpm_client.transport import retry
from voxcpm_client.transport.retry import Attempts


@pytest.fixture
async def client(server):
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client:
        yield client


async def test_a_stream_lost_before_its_first_audio_is_retried(client, server):
    server.fail("UNAVAILABLE", times=2)
    consumed = []

    def once():
        for piece in ("He", "llo"):
            consumed.append(piece)
            yield piece

    speech = await client.say(once(), seed=4)
    np.testing.assert_array_equal(speech.samples, server.samples("Hello"))
    assert consumed == ["He", "llo"]
    assert len(server.calls) == 3
    assert {call.config.turn.sampling.seed for call in server.calls} == {4}
    assert len({call.config.request_id for call in server.calls}) == 1


async def test_text_after_the_first_attempt_is_sent_on_the_second(client, server):
    server.fail("UNAVAILABLE")

    async def slow():
        yield "one "
        await asyncio.to_thread(server.wait_for_calls, 2)
        yield "two"

    speech = await client.say(slow())
    np.testing.assert_array_equal(speech.samples, server.samples("one two"))


@pytest.mark.parametrize("code", ["CANCELLED", "UNKNOWN"])
async def test_a_stream_cut_by_a_proxy_is_retried_before_its_first_audio(client, server, code):
    """HAProxy ends streams with a reset or without a status when it loses the server."""
    server.fail(code)
    speech = await client.say("Hello")
    np.testing.assert_array_equal(speech.samples, server.samples("Hello"))
    assert len(server.calls) == 2
    server.fail(code, after_chunks=1)
    async with client.speak(["one", "two"]) as stream:
        await anext(stream)
        with pytest.raises(Unavailable, match="connection was cut"):
            await anext(stream)
    assert len(server.calls) == 3


@pytest.mark.parametrize("code", ["ABORTED", "INVALID_ARGUMENT", "INTERNAL", "NOT_FOUND", "RESOURCE_EXHAUSTED"])
async def test_other_failures_are_not_retried(client, server, code):
    server.fail(code)
    with pytest.raises(SpeechError) as raised:
        await client.say("a")
    assert raised.value.code == code
    assert len(server.calls) == 1


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAVAILABLE"])
@pytest.mark.parametrize(
    "how", [{"retry_after": 0.4}, {"pushback": "400"}, {"retry_after": NEVER_SECONDS, "pushback": "400"}]
)
async def test_the_client_waits_as_long_as_the_server_asks(client, server, code, how):
    """The pushback overrides the retry delay; a client that took the longer one would raise the error at once."""
    server.fail(code, **how)
    started = time.monotonic()
    await client.say("a")
    assert time.monotonic() - started >= 0.4
    assert len(server.calls) == 2


async def test_a_negative_pushback_forbids_a_retry(client, server):
    server.fail("UNAVAILABLE", pushback="-1")
    with pytest.raises(Unavailable) as raised:
        await client.say("a")
    assert raised.value.retry_after == math.inf
    assert len(server.calls) == 1


async def test_the_number_of_retries_is_bounded(server):
    server.fail("UNAVAILABLE", times=9, retry_after=0.01)
    async with AsyncClient(server.target, retries=2) as client:
        with pytest.raises(Unavailable):
            await client.say("a")
    assert len(server.calls) == 3


async def test_retries_last_as_long_as_the_restart_of_an_engine(client, server):
    """A server whose engine restarts refuses each call with a time to try again."""
    server.fail("UNAVAILABLE", times=40, retry_after=0.01)
    await client.say("a")
    assert len(server.calls) == 41


async def test_retries_can_be_turned_off(server):
    server.fail("UNAVAILABLE", times=2, retry_after=0.01)
    server.fail("UNAVAILABLE", method="GetModelInfo")
    async with AsyncClient(server.target, retry_seconds=0) as client:
        for _ in range(2):
            with pytest.raises(Unavailable):
                await client.say("a")
        with pytest.raises(Unavailable):
            await client.model_info()
    assert len(server.calls) == 3


async def test_the_time_of_retries_is_bounded(server):
    server.fail("UNAVAILABLE", times=1000, retry_after=0.2)
    async with AsyncClient(server.target, retry_seconds=1.0) as client:
        with pytest.raises(Unavailable):
            await client.say("a")
    assert 2 <= len(server.calls) <= 6


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED"])
async def test_a_server_that_asks_for_more_time_than_that_is_not_awaited(client, server, code):
    server.fail(code, retry_after=121.0)
    with pytest.raises(SpeechError) as raised:
        await client.say("a", timeout=None)
    assert raised.value.retry_after == 121.0
    assert len(server.calls) == 1


class Clock:
    """A clock for Attempts that goes on only in pauses."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(retry, "time", clock)
    monkeypatch.setattr(retry, "asyncio", clock)
    return clock


async def seconds_of_retries(clock: Clock, error: SpeechError, *, reached: bool = True, **options) -> float:
    """The time from the first failure to the last attempt, with a server that fails always."""
    attempts = Attempts(**{"timeout": None, "retries": None, "retry_seconds": DEFAULT_RETRY_SECONDS, **options})
    started = clock.now
    with pytest.raises(type(error)):
        while True:
            await attempts.pause(error, reached=reached)
    return clock.now - started


async def test_the_default_covers_the_restart_of_an_engine_and_no_more(clock):
    for error in (Unavailable("no engine"), Unavailable("no engine", retry_after=1.0), Exhausted("", retry_after=2.0)):
        assert 115 <= await seconds_of_retries(clock, error) <= 120


async def test_a_server_that_starts_is_asked_again_every_second(clock):
    """It asks for the time that it expects to need, and may be ready earlier."""
    attempts = Attempts(timeout=None, retries=None, retry_seconds=10.0)
    started = clock.now
    for _ in range(5):
        await attempts.pause(Unavailable("the model is loading", retry_after=40.0))
    assert clock.now - started == 5.0
    await attempts.pause(Unavailable("the server is shutting down", retry_after=0.0))
    assert clock.now - started == 5.0


async def test_a_limited_number_of_attempts_waits_as_long_as_the_server_asks(clock):
    attempts = Attempts(timeout=None, retries=2, retry_seconds=DEFAULT_RETRY_SECONDS)
    started = clock.now
    for _ in range(2):
        await attempts.pause(Unavailable("the model is loading", retry_after=40.0))
    assert clock.now - started == 80.0


async def test_a_server_that_never_answered_is_given_up_soon(clock):
    error = Unavailable("no server answers")
    assert 1 <= await seconds_of_retries(clock, error, reached=False) <= 5
    assert await seconds_of_retries(clock, error, reached=False, retry_seconds=1.0) <= 1


async def test_every_limit_ends_the_retries(clock):
    error = Unavailable("no engine", retry_after=1.0)
    assert await seconds_of_retries(clock, error, retries=3) == 3
    assert await seconds_of_retries(clock, error, retries=0) == 0
    assert await seconds_of_retries(clock, error, retry_seconds=0.0) == 0
    assert await seconds_of_retries(clock, error, retry_seconds=7.5) == 7
    assert await seconds_of_retries(clock, error, timeout=4.5) == 4
    assert await seconds_of_retries(clock, Exhausted("without a time")) == 0
    assert await seconds_of_retries(clock, NotFound("no voice", retry_after=1.0)) == 0


async def test_a_stream_with_too_much_text_to_keep_is_not_retried(client, server):
    server.max_text_chars = 2 << 20
    server.hold.clear()
    server.fail("UNAVAILABLE")
    asked = []

    def pieces():
        for number in range(80):
            asked.append(number)
            yield "x" * 15_000

    task = asyncio.create_task(client.say(pieces()))
    await until(lambda: 15_000 * (len(asked) - 1) > 1 << 20)  # all pieces but the last are sent or queued
    server.hold.set()
    with pytest.raises(Unavailable):
        await task
    assert len(server.streams) == 1


async def test_a_call_without_an_answer_ends_at_its_timeout(client, server):
    server.hold.clear()
    started = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=r"timeout of 0\.5 s") as raised:
        async with asyncio.timeout(HANG_SECONDS):
            await client.say("a", timeout=0.5, request_id="late")
    assert time.monotonic() - started > 0.4
    assert raised.value.request_id == "late"


async def test_the_timeout_of_the_client_applies_to_every_call(server):
    server.hold.clear()
    async with AsyncClient(server.target, timeout=0.5) as client:
        with pytest.raises(DeadlineExceeded):
            await client.say("a")


async def test_unary_calls_and_uploads_are_retried(client, server, tmp_path):
    server.fail("UNAVAILABLE", times=2, method="GetModelInfo")
    assert (await client.model_info()).model == "fake"
    server.fail("UNAVAILABLE", times=2)
    voice = await client.add_reference(b"r" * 100_000)
    assert server.recordings[voice.id] == b"r" * 100_000
    server.fail("UNAVAILABLE")
    assert (await client.encode_latents(b"l" * 64, role="prompt")).data.shape == (4, 16)
    assert len(server.calls) == 8


async def test_an_unreachable_server_is_an_error_with_its_address():
    with socket.socket() as taken:  # bound, so that no other program listens there
        taken.bind(("127.0.0.1", 0))
        target = f"127.0.0.1:{taken.getsockname()[1]}"
        async with AsyncClient(target, retries=1) as client:
            with pytest.raises(Unavailable, match=f"no server answers at {target}"):
                await client.say("a")
            with pytest.raises(Unavailable, match=f"no server answers at {target}") as raised:
                await client.health()
            assert raised.value.about_connection


@pytest.mark.parametrize(
    ("code", "kind"), [("INTERNAL", InternalError), ("NOT_FOUND", NotFound), ("DATA_LOSS", SpeechError)]
)
async def test_every_status_is_a_speech_error(client, server, code, kind):
    server.fail(code)
    with pytest.raises(SpeechError) as raised:
        await client.add_prompt(b"audio", "text")
    assert type(raised.value) is kind
    assert raised.value.code == code


async def test_a_client_works_after_a_failed_call(client, server):
    server.fail("INTERNAL")
    with pytest.raises(InternalError):
        await client.say("a")
    assert len((await client.say("a")).samples) == 160


async def test_a_cancellation_that_is_lost_with_the_status_of_a_call_ends_the_task(client):
    """grpc.aio loses one that arrives together with the status of a streaming call, and raises the status."""
    attempts = []

    async def attempt(_: float | None) -> None:
        attempts.append(asyncio.current_task())
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(NEVER_SECONDS)
        raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())

    connection = client._connection
    calling = asyncio.create_task(connection.repeat(attempt, connection.attempts(HANG_SECONDS)))
    await until(lambda: attempts)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert len(attempts) == 1
