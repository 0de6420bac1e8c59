"""Connections that take no new calls after a while, so that load balancers can spread calls anew."""

from __future__ import annotations

import asyncio
import re

from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.v1 import tts_pb2 as pb


async def test_new_calls_use_another_connection_while_an_open_stream_finishes(serve_front, fake, caplog):
    caplog.set_level("INFO")
    pool = fake(hold_after=3)
    async with serve_front(pool, server={"max_connection_age_seconds": 0.3}) as served:
        call = served.stub.Generate(iter([pb.GenerateRequest(text="This stream is longer than its connection.")]))
        while not (await call.read()).audio:
            pass
        connections: set[str] = set()
        async with asyncio.timeout(HANG_SECONDS):
            while len(connections) < 3:
                await served.stub.GetModelInfo(pb.GetModelInfoRequest())
                connections = set(re.findall(r"method=GetModelInfo .* peer=(\S+)", caplog.text))
        pool.release()
        rest = [chunk async for chunk in _rest(call)]
        assert rest[-1].HasField("summary")
        await until(lambda: "method=Generate code=OK" in caplog.text)


async def test_calls_end_after_the_grace_of_their_connection(serve_front, fake, caplog):
    caplog.set_level("INFO")
    ages = {"max_connection_age_seconds": 0.2, "max_connection_age_grace_seconds": 0.2}
    async with serve_front(fake(hold_after=3), server=ages) as served:
        call = served.stub.Generate(iter([pb.GenerateRequest(text="This stream is longer than its connection.")]))
        await call.read()
        await until(lambda: "method=Generate code=CANCELLED" in caplog.text)


async def _rest(call):
    while isinstance(chunk := await call.read(), pb.AudioChunk):
        yield chunk
