"""Callers that open streams and let no reply through: HTTP/2 windows of 0, and nothing but headers."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import grpc
import pytest
from support.hostile.frames import DATA, END_STREAM, GENERATE, PREFACE, RST_STREAM, SETTINGS, call, frame, grpc_message
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.v1 import tts_pb2 as pb

INITIAL_WINDOW = 4
CLOSED = frame(SETTINGS, struct.pack(">HI", INITIAL_WINDOW, 0))
HALF_CLOSE = frame(DATA, flags=END_STREAM, stream=1)
CONFIG = frame(DATA, grpc_message(pb.GenerateRequest(config=pb.GenerateConfig()).SerializeToString()), stream=1)


async def until_reset(address: str, data: bytes) -> None:
    """Open a stream whose replies have no window, and wait until the server resets it."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(PREFACE + CLOSED + call(GENERATE) + data)
        kind = None
        while kind != RST_STREAM:
            head = await reader.readexactly(9)
            kind = head[3]
            await reader.readexactly(int.from_bytes(head[:3], "big"))
    finally:
        writer.close()


@pytest.mark.parametrize("sent", [b"", CONFIG, HALF_CLOSE], ids=["headers", "a config", "headers and the end"])
async def test_streams_without_text_end_after_the_idle_time_although_nobody_reads_their_end(serve_front, sent, caplog):
    caplog.set_level("INFO")
    async with serve_front(stream_idle_seconds=0.5, max_streams=5) as served, asyncio.timeout(HANG_SECONDS):
        await served.generate("First.")  # gRPC keeps the first call of a server in memory until the server stops
        resets = asyncio.gather(*(until_reset(served.address, sent) for _ in range(5)))
        await until(lambda: caplog.text.count("the limit of limits.stream_idle_seconds") == 5)
        assert (await served.generate("There is room."))[-1].HasField("summary")  # gRPC forgets the call before
        await resets


async def test_who_reads_gets_the_end_of_an_idle_stream(serve_front):
    async with serve_front(stream_idle_seconds=0.5) as served:
        stream: Any = served.stub.Generate()
        [message] = [message async for message in stream]
        assert message.summary.finish_reason == pb.FINISH_REASON_IDLE
        assert await stream.code() is grpc.StatusCode.OK
