"""The client while engines and servers end: it waits for the restart of an engine, and says why a stream has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psutil
import pytest
from support.servers.running import Server, serving
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import Aborted, AsyncClient, Client, SpeechError, Unavailable

LONG = "A sentence that takes its time to be spoken, as it is long, and longer than anyone would want to listen. " * 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("voices")) as server:
        yield server


def test_a_call_during_the_restart_of_an_engine_is_spoken(server):
    with Client(server.address, timeout=2 * HANG_SECONDS) as client:
        client.say("One.", max_steps=2, timesteps=4)
        children = psutil.Process(server.process.pid).children()
        [engine] = [child for child in children if "engine cpu:0" in child.cmdline()[0]]
        engine.kill()
        engine.wait(HANG_SECONDS)
        assert len(client.say("Two.", max_steps=2, timesteps=4).samples) > 0


async def test_a_stream_of_a_server_that_is_killed_says_so(server):
    """The last test of this server."""
    assert "was lost in mid-stream" in await message_after(server, server.kill)


async def test_a_stream_of_a_server_that_does_not_wait_for_it_says_so(tmp_path):
    with serving(tmp_path, "--drain-seconds", "0.2") as server:
        assert "shutting down" in await message_after(server, server.terminate)


async def message_after(server: Server, end: Callable[[], None]) -> str:
    """The message of a stream that outlives its server."""
    async with AsyncClient(server.address, timeout=HANG_SECONDS) as client, client.speak(LONG) as stream:
        await anext(stream)
        end()
        with pytest.raises(SpeechError) as raised:
            async for _ in stream:
                pass
    assert type(raised.value) in (Unavailable, Aborted)
    assert "no server answers" not in raised.value.message
    return raised.value.message
