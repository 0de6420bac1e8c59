"""The messages that a server reads from a failed stream before it sends the status."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
from support.doubles.made_up_time import run

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.rpc.call import RequestStream

UPLOAD = pb.AddPromptRequest(audio=pb.AudioPart(data=bytes(100_000)))
LIVE = pb.AddPromptRequest(audio=pb.AudioPart(data=bytes(1920)))  # 20 ms of 48 kHz
TOKEN = pb.GenerateRequest(text="word ")


async def sent(message: object, count: int, pause: float) -> AsyncIterator[object]:
    for _ in range(count):
        await asyncio.sleep(pause)
        yield message


def seconds_until_the_status(
    messages: AsyncIterator[object], uploads: Callable[[float], bool] = lambda now: True
) -> float:
    """The time that a server reads on. `uploads` says at a time whether it waits for the end of an upload."""

    async def linger() -> float:
        now = asyncio.get_running_loop().time
        stream = RequestStream(messages)
        await stream.linger(uploads=lambda: uploads(now()))
        stream.close()
        return now()

    return run(linger())


@pytest.mark.parametrize(
    ("message", "count", "pause", "seconds"),
    [
        (UPLOAD, 30, 0.05, 1.5),  # to its end
        (UPLOAD, 1000, 0.05, 2.0),
        (UPLOAD, 3, 0.05, 0.15),
        (UPLOAD.SerializeToString(), 1000, 0.05, 2.0),
        (LIVE, 1000, 0.02, 0.25),
        (TOKEN, 1000, 0.02, 0.25),
        (TOKEN.SerializeToString(), 1000, 0.02, 0.25),
        (TOKEN, 2, 0.02, 0.04),
        (TOKEN, 1, 60.0, 0.25),
    ],
    ids=[
        *("upload", "long-upload", "short-upload", "upload-before-the-start", "live-audio"),
        *("text", "text-before-the-start", "short-text", "silence"),
    ],
)
def test_a_status_waits_for_the_end_of_what_a_client_sends_at_once(message, count, pause, seconds):
    assert seconds_until_the_status(sent(message, count, pause)) == pytest.approx(seconds)


def test_a_server_that_begins_to_drain_waits_no_longer_for_an_upload():
    upload = sent(UPLOAD, 1000, 0.05)
    assert seconds_until_the_status(upload, uploads=lambda now: now < 0.6) == pytest.approx(0.75)


def test_an_error_of_the_connection_ends_the_wait():
    async def broken() -> AsyncIterator[object]:
        yield UPLOAD
        raise RuntimeError("the connection is gone")

    assert seconds_until_the_status(broken()) == 0
