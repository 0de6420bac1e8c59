"""The client gets the status of the server even if it is still sending."""

import grpc
import pytest
from support.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, Exhausted, InvalidArgument
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

ROUNDS = 40  # without CallStatus most rounds fail, but not all


class Refusing(tts_pb2_grpc.VoxCPMServiceServicer):
    async def Generate(self, request_iterator, context):
        yield pb.AudioChunk()
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")

    async def AddReference(self, request_iterator, context):
        async for _ in request_iterator:
            break
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too long")
        yield

    async def EncodeLatents(self, request_iterator, context):
        async for _ in request_iterator:
            break
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "too long")


@pytest.fixture
async def client():
    server = grpc.aio.server()
    tts_pb2_grpc.add_VoxCPMServiceServicer_to_server(Refusing(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with AsyncClient(f"127.0.0.1:{port}", timeout=HANG_SECONDS) as client:
        yield client
    await server.stop(0)


async def test_a_refusal_while_text_is_sent(client):
    for _ in range(ROUNDS):
        with pytest.raises(Exhausted, match="full"):
            await client.say(["text"] * 200)


async def test_a_refusal_while_a_recording_is_sent(client):
    for _ in range(ROUNDS):
        with pytest.raises(InvalidArgument, match="too long"):
            await client.add_reference(b"x" * 3_000_000)
        with pytest.raises(InvalidArgument, match="too long"):
            await client.encode_latents(b"x" * 3_000_000, role="prompt")
