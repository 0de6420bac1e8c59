"""A client that is used where it cannot work says so: after its end, in another event loop, inside its own calls."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from support.doubles.cycles import no_warnings
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, Client, SpeechError, UnusableClient

CLOSED = "the client (is|was) closed"
OTHER_LOOP = "the client belongs to the event loop of its first call"
CALLS: dict[str, Callable[[Any], Any]] = {
    "health": lambda client: client.health(),
    "say": lambda client: client.say("Hello."),
    "voices": lambda client: client.voices(),
    "add_reference": lambda client: client.add_reference(b"a recording"),
    "encode_latents": lambda client: client.encode_latents(b"a recording", role="prompt"),
    "server_stats": lambda client: client.server_stats(),
}


def in_a_thread(call: Callable[[], Any]) -> Any:
    """The result of a function that runs in a thread of its own; its exception is raised here."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append((call(), None))
        except BaseException as error:
            results.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(HANG_SECONDS)
    result, error = results.pop()
    if error is not None:
        raise error
    return result


def test_the_error_is_of_the_kinds_that_programs_catch():
    assert issubclass(UnusableClient, SpeechError)
    assert issubclass(UnusableClient, RuntimeError)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_a_closed_client_says_so(server, call):
    async with AsyncClient(server.target) as client:
        await client.health()
    with pytest.raises(UnusableClient, match=CLOSED) as raised:
        await call(client)
    assert "\n" not in str(raised.value)
    with pytest.raises(UnusableClient, match=CLOSED):
        await call(client.with_metadata({"a": "b"}))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_closed_blocking_client_says_so(server, call):
    with no_warnings():
        with Client(server.target) as client:
            client.health()
        for _ in range(2):
            with pytest.raises(UnusableClient, match=CLOSED):
                call(client)
            client.close()


async def test_streams_of_a_closed_client_end_with_the_reason(server):
    async with AsyncClient(server.target) as client:
        stream, session = client.speak("One. Two."), client.session()
        await session.send_text("Hello.")
        await anext(stream)
        await anext(session)
    with pytest.raises(UnusableClient, match=CLOSED):
        await anext(stream)
    for send in (lambda: session.send_text("More."), session.flush, session.interrupt, session.finish):
        with pytest.raises(UnusableClient, match=CLOSED):
            await send()
    await session.aclose()
    with pytest.raises(UnusableClient, match=CLOSED):
        await anext(client.speak("Hello."))


def test_streams_of_a_closed_blocking_client_end_with_the_reason(server):
    with Client(server.target) as client:
        stream = client.speak("One. Two.")
        next(stream)
    with pytest.raises(UnusableClient, match=CLOSED):
        next(stream)
    stream.close()
    with pytest.raises(UnusableClient, match=CLOSED):
        client.speak("Hello.").speech()


async def test_closing_a_client_ends_the_calls_of_other_tasks_with_the_reason(server):
    server.hold.clear()
    client = AsyncClient(server.target)
    calls = [asyncio.create_task(client.say("Hello.")), asyncio.create_task(anext(client.session()))]
    await asyncio.to_thread(server.wait_for_calls, 2)
    await client.aclose()
    for call in calls:
        with pytest.raises(UnusableClient, match=CLOSED):
            await call


def test_closing_a_blocking_client_ends_the_calls_of_other_threads_with_the_reason(server):
    server.hold.clear()
    client = Client(server.target)
    closing = threading.Thread(target=lambda: server.wait_for_calls(1) and client.close())
    closing.start()
    with pytest.raises(UnusableClient, match=CLOSED):
        client.say("Hello.")
    closing.join(HANG_SECONDS)


async def test_closing_a_client_at_any_moment_ends_its_call_with_the_reason(server):
    server.hold.clear()
    for turns in range(40):  # of the event loop, from before the call to the wait for its first message
        client = AsyncClient(server.target)
        call = asyncio.create_task(client.say("Hello."))
        for _ in range(turns):
            await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises(UnusableClient, match=CLOSED):
            await asyncio.wait_for(call, HANG_SECONDS)


async def test_a_call_that_its_caller_cancels_is_cancelled(server):
    server.hold.clear()
    async with AsyncClient(server.target) as client:
        call = asyncio.create_task(client.say("Hello."))
        await asyncio.to_thread(server.wait_for_calls, 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


def test_a_client_in_a_second_event_loop_says_so(server):
    client = AsyncClient(server.target)
    assert asyncio.run(client.health())
    for call in CALLS.values():
        with pytest.raises(UnusableClient, match=OTHER_LOOP):
            asyncio.run(call(client))
    asyncio.run(client.aclose())  # there is nothing left to close
    with pytest.raises(UnusableClient, match=CLOSED):
        asyncio.run(client.health())


async def test_a_client_in_the_event_loop_of_another_thread_says_so(server):
    def elsewhere(coroutine: Any) -> Any:
        return in_a_thread(lambda: asyncio.run(coroutine))

    async with AsyncClient(server.target) as client:
        session = client.session()
        await session.send_text("Hello.")
        await anext(session)
        for call in (
            client.health(),
            client.aclose(),
            anext(session),
            session.send_text("More."),
            session.flush(),
            session.finish(),
        ):
            with pytest.raises(UnusableClient, match=OTHER_LOOP):
                await asyncio.to_thread(elsewhere, call)
        assert await client.health()


def test_a_client_that_was_made_elsewhere_belongs_to_the_loop_of_its_first_call(server):
    client = AsyncClient(server.target)

    async def call() -> bool:
        async with client:
            return await client.health()

    assert in_a_thread(lambda: asyncio.run(call()))


async def test_a_blocking_client_works_inside_an_event_loop(server):
    with Client(server.target) as client:
        assert client.health()


def test_a_blocking_client_does_not_wait_for_itself(server):
    async def text() -> AsyncIterator[str]:
        yield "Hello. "
        yield str(client.voices())

    with Client(server.target, timeout=HANG_SECONDS) as client:
        with pytest.raises(UnusableClient, match="called in its own event loop"):
            client.say(text())
        assert client.health()


AT_EXIT = """
import atexit, sys
from voxcpm_client import Client, SpeechError

def late():
    try:
        client.say("Goodbye.")
    except SpeechError as error:
        print(type(error).__name__, error)

atexit.register(late)
client = Client(sys.argv[1])
if sys.argv[2] == "used":
    client.health()
"""


@pytest.mark.parametrize("use", ["used", "unused"])
def test_a_client_at_the_end_of_the_program_says_so(server, use):
    command = [sys.executable, "-c", AT_EXIT, server.target, use]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, env=os.environ)
    assert done.stdout.startswith("UnusableClient the client is closed, perhaps by the end of the program")
    assert done.stderr == ""


async def test_a_stream_may_be_closed_by_several_tasks_at_once(server):
    """As by its reader, whose call has ended, and by the client. The end of the responses may take a while."""

    async def responses():
        try:
            yield
        finally:
            await asyncio.sleep(0.05)

    server.hold.clear()
    async with AsyncClient(server.target) as client:
        stream: Any = client.speak("Hello.")
        await stream.start()
        stream._responses = replaced = responses()
        await anext(replaced)
        await asyncio.gather(stream.aclose(), stream.aclose())
