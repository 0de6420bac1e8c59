"""The client gets the status of the server even if it is still sending, and reads it with every grpcio."""

from collections.abc import Callable, KeysView
from typing import Any
from weakref import ref

import grpc
import pytest
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, Exhausted, InvalidArgument, Unavailable
from voxcpm_client.status import LOST_WRITE, CallStatus
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


async def test_errors_have_their_details_where_the_keys_of_metadata_are_pairs(server, monkeypatch):
    """So they are before grpcio 1.80, where `dict(metadata)` raises KeyError."""
    monkeypatch.setattr(grpc.aio.Metadata, "keys", lambda metadata: KeysView(metadata))
    async with AsyncClient(server.target, timeout=HANG_SECONDS) as client:
        server.fail("INVALID_ARGUMENT", message="too odd", field="config.turn.sampling.seed", request_id="r-1")
        with pytest.raises(InvalidArgument, match="too odd") as raised:
            await client.say("text")
        assert (raised.value.field, raised.value.request_id) == ("config.turn.sampling.seed", "r-1")
        server.fail("UNAVAILABLE", message="starting", pushback="1000000", request_id="r-2", method="GetModelInfo")
        with pytest.raises(Unavailable, match=r"^starting") as refused:
            await client.model_info()
        assert (refused.value.retry_after, refused.value.about_connection) == (1000.0, False)


class KeepingCall:
    """A call as grpcio 1.71.2 makes it: it keeps its callbacks, and runs them for each of its statuses."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], object]] = []
        self.status = ""

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self.callbacks.append(callback)

    def end(self, details: str) -> None:
        self.status = details
        for callback in self.callbacks:
            callback(self)

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.INTERNAL

    async def details(self) -> str:
        return self.status

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata()


@pytest.mark.parametrize("order", [("too long", LOST_WRITE), (LOST_WRITE, "too long"), (LOST_WRITE, "too long", "end")])
async def test_the_status_of_the_server_is_kept_whatever_a_call_is_given_after_it(order):
    call = KeepingCall()
    status = CallStatus(call)
    for details in order:
        call.end(details)
    nothing = grpc.aio.Metadata()
    raised = grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, LOST_WRITE)
    assert (await status.final(raised)).details() == "too long"


def test_a_call_that_keeps_its_callbacks_does_not_keep_its_status():
    call = KeepingCall()
    kept = ref(CallStatus(call))
    assert kept() is None
    call.end("too long")
