"""Peers that vanish: nothing arrives from them any more, and their connections stay open."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import grpc
import pytest
from support.servers.waiting import NEVER_SECONDS, until

from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.services.server import options


@dataclass
class Proxy:
    """Forwards connections to a server. After `vanish`, it forwards nothing and closes nothing."""

    target: str
    address: str = ""
    vanished: bool = False
    tasks: list[asyncio.Task] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    def vanish(self) -> None:
        self.vanished = True

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        ahead, back = await asyncio.open_connection(host, int(port))
        self.writers += [back, writer]
        self.tasks += [asyncio.create_task(self.forward(*way)) for way in ((reader, back), (ahead, writer))]

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self.vanished:
                    await asyncio.sleep(NEVER_SECONDS)
                writer.write(data)
                await writer.drain()


@asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(target)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    proxy.address = f"{host}:{port}"
    try:
        yield proxy
    finally:
        server.close()
        for forwarding in proxy.tasks:
            forwarding.cancel()
        for writer in proxy.writers:
            writer.close()


SHORT = {"keepalive_seconds": 1.0, "keepalive_timeout_seconds": 5.0}  # a busy host answers a ping within the timeout


@pytest.mark.parametrize("speaks", [True, False])
async def test_the_streams_of_a_vanished_peer_are_freed(serve_front, fake, speaks):
    pool = fake(hold_after=None if speaks else 1, step_seconds=0.05)
    async with (
        serve_front(pool, server=SHORT) as served,
        proxy_to(served.address) as proxy,
        grpc.aio.insecure_channel(proxy.address) as channel,
    ):
        call = tts_pb2_grpc.VoxCPMServiceStub(channel).Generate()
        await call.write(pb.GenerateRequest(text="Hello. " * 2000))
        while not (await call.read()).sample_count:
            pass
        proxy.vanish()
        await until(lambda: not (pool.running or served.gate.streams or len(served.rpc.calls)))


def test_a_vanished_peer_is_noticed_within_half_a_minute_by_default():
    by_default = dict(options(Settings(), shared=False))
    assert by_default["grpc.keepalive_time_ms"] + by_default["grpc.http2.ping_timeout_ms"] <= 30_000


async def test_a_client_may_send_pings_every_ten_seconds():
    assert dict(options(Settings(), shared=False))["grpc.http2.min_ping_interval_without_data_ms"] < 10_000
