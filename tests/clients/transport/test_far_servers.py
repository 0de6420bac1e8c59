"""A server at the end of a slow network, to which a connection takes long."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, Client
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

# Longer than a handshake of TLS across the Pacific, and shorter than gRPC waits for a connection.
DELAY_SECONDS = 1.0


class Described(tts_pb2_grpc.VoxCPMServiceServicer):
    async def GetModelInfo(self, request, context):
        return pb.GetModelInfoResponse(model="far")


@asynccontextmanager
async def far_server() -> AsyncIterator[str]:
    """The address of a server whose first bytes arrive DELAY_SECONDS after the connection."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(DELAY_SECONDS)
        above, below = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(_copy(reader, below), _copy(above, writer))

    server = grpc.aio.server()
    tts_pb2_grpc.add_VoxCPMServiceServicer_to_server(Described(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    network = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{network.sockets[0].getsockname()[1]}"
    finally:
        network.close()
        await server.stop(0)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    writer.close()


@pytest.mark.parametrize("retry_seconds", [0, HANG_SECONDS])
async def test_a_connection_may_take_long(retry_seconds):
    options = {"timeout": HANG_SECONDS, "retry_seconds": retry_seconds}
    async with far_server() as target, AsyncClient(target, **options) as client:
        assert (await client.model_info()).model == "far"


async def test_the_blocking_client_waits_as_long():
    def ask(target: str) -> str:
        with Client(target, timeout=HANG_SECONDS, retry_seconds=0) as client:
            return client.model_info().model

    async with far_server() as target:
        assert await asyncio.to_thread(ask, target) == "far"
