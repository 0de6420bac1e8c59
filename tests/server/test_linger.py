"""What a server reads of a stream that has failed, before it sends the status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from support.made_up_time import run

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.rpc.call import RequestStream

UPLOAD = pb.AddPromptRequest(audio=pb.AudioPart(data=bytes(100_000)))
LIVE = pb.AddPromptRequest(audio=pb.AudioPart(data=bytes(1920)))  # 20 ms of 48 kHz
TOKEN = pb.GenerateRequest(text="word ")


async def sent(message: object, count: int, pause: float) -> AsyncIterator[object]:
    for _ in range(count):
        await asyncio.sleep(pause)
        yield message


@pytest.mark.parametrize(
    ("message", "count", "pause", "seconds"),
    [
        (UPLOAD, 30, 0.05, 1.5),  # to its end
        (UPLOAD, 1000, 0.05, 2.0),
        (UPLOAD, 3, 0.05, 0.15),
        (LIVE, 1000, 0.02, 0.25),
        (TOKEN, 1000, 0.02, 0.25),
        (TOKEN, 2, 0.02, 0.04),
        (TOKEN, 1, 60.0, 0.25),
    ],
    ids=["upload", "long-upload", "short-upload", "live-audio", "text", "short-text", "silence"],
)
def test_a_status_waits_for_the_end_of_what_a_client_sends_at_once(message, count, pause, seconds):
    async def linger() -> float:
        stream = RequestStream(sent(message, count, pause))
        await stream.linger()
        stream.close()
        return asyncio.get_running_loop().time()

    assert run(linger()) == pytest.approx(seconds)


def test_a_server_that_drains_does_not_wait_for_an_upload():
    async def linger() -> float:
        stream = RequestStream(sent(UPLOAD, 1000, 0.05))
        await stream.linger(uploads=False)
        stream.close()
        return asyncio.get_running_loop().time()

    assert run(linger()) == 0.25


def test_an_error_of_the_connection_ends_the_wait():
    async def broken() -> AsyncIterator[object]:
        yield UPLOAD
        raise RuntimeError("the connection is gone")

    async def linger() -> float:
        await RequestStream(broken()).linger()
        return asyncio.get_running_loop().time()

    assert run(linger()) == 0
