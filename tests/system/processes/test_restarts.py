"""The client while engines and servers end: it waits for the restart of an engine, and says why a stream has ended."""

from __future__ import annotations

import psutil
import pytest
from support.servers import serving
from support.waiting import HANG_SECONDS

from voxcpm_client import Aborted, AsyncClient, Client, SpeechError, Unavailable

LONG = "A sentence that takes its time to be spoken, as it is long, and longer than anyone would want to listen. " * 40


def test_a_call_during_the_restart_of_an_engine_is_spoken(tmp_path):
    with serving(tmp_path) as server, Client(server.address, timeout=2 * HANG_SECONDS) as client:
        client.say("One.", max_steps=2, timesteps=4)
        children = psutil.Process(server.process.pid).children()
        [engine] = [child for child in children if "engine cpu:0" in child.cmdline()[0]]
        engine.kill()
        engine.wait(HANG_SECONDS)
        assert len(client.say("Two.", max_steps=2, timesteps=4).samples) > 0


@pytest.mark.parametrize("how", ["terminate", "kill"])
async def test_a_stream_that_outlives_its_server_says_so(tmp_path, how):
    with serving(tmp_path, "--drain-seconds", "0.2") as server:
        async with AsyncClient(server.address, timeout=HANG_SECONDS) as client, client.speak(LONG) as stream:
            await anext(stream)
            getattr(server, how)()
            with pytest.raises(SpeechError) as raised:
                async for _ in stream:
                    pass
    assert type(raised.value) in (Unavailable, Aborted)
    assert "no server answers" not in raised.value.message
    assert ("shutting down" if how == "terminate" else "was lost in mid-stream") in raised.value.message
