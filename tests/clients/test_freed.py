"""The memory of a call of a client is free when the call has ended, without the garbage collector.

An exception that was raised to the caller is the caller's, with all frames in its traceback, until it is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from support.doubles.cycles import no_garbage
from support.servers.uploads import recording

from voxcpm_client import AsyncClient, Client, DeadlineExceeded, InternalError, InvalidArgument, NotFound

TEXT = "Hello there."
CLIENT = {"voxcpm_client"}  # the fake server in this process has messages, too
LONG = ["Hello there. "] * 100


def broken_text() -> Iterator[str]:
    yield TEXT
    raise KeyError


def fails_with(server, code: grpc.StatusCode, after: int) -> None:
    server.fail(code.name, after_chunks=after)


async def speak(server, client: AsyncClient) -> None:
    await client.say(TEXT)
    await client.say(iter([TEXT, TEXT]))
    async with client.session() as session:
        await session.send_text(TEXT)
        await session.flush(tag="a")
        await session.interrupt()
        await session.finish()
        async for _ in session:
            pass
    async with client.speak(LONG) as stream:
        await anext(stream)
    stream = client.speak(LONG)
    await anext(stream)
    await stream.aclose()


async def fail(server, client: AsyncClient) -> None:
    for after in (0, 1):
        fails_with(server, grpc.StatusCode.INTERNAL, after)
        with pytest.raises(InternalError):
            await client.say([TEXT, TEXT])
    with pytest.raises(KeyError):
        await client.say(broken_text())
    server.hold.clear()
    with pytest.raises(DeadlineExceeded):
        await client.say(TEXT, timeout=0.1)
    id = f"reading {len(server.calls)}"
    reading = asyncio.create_task(client.say(TEXT, request_id=id))
    assert await asyncio.to_thread(server.wait_for_stream, id)
    reading.cancel()
    await asyncio.wait([reading])
    server.hold.set()


async def use_voices(server, client: AsyncClient) -> None:
    voice = await client.add_prompt(recording(), "Hi there.", auditions=["One."])
    await client.get_voice(voice.id)
    with pytest.raises(NotFound):
        await client.get_voice("nobody")
    fails_with(server, grpc.StatusCode.INVALID_ARGUMENT, 0)
    with pytest.raises(InvalidArgument):
        await client.add_reference((np.ones(1000, np.float32), 16000))


@pytest.mark.parametrize("work", [speak, fail, use_voices])
async def test_calls_leave_nothing(server, work):
    async with AsyncClient(server.target) as client:
        await work(server, client)
        with no_garbage(CLIENT):
            await work(server, client)


def test_calls_of_the_blocking_client_leave_nothing(server):
    def work(client: Client) -> None:
        client.say(TEXT)
        with client.speak(LONG) as stream:
            next(stream)
        fails_with(server, grpc.StatusCode.INTERNAL, 0)
        with pytest.raises(InternalError):
            client.say(TEXT)

    with Client(server.target) as client:
        work(client)
        with no_garbage(CLIENT):
            work(client)
