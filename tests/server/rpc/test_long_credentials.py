"""Keys and tokens of any length: up to the limit they pass at every door, beyond it every call says so."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from support.clients.grpc_types import health_stub
from support.clients.json_tokens import document, token
from support.servers.operated import operated
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, Client, Exhausted, InvalidArgument
from voxcpm_grpc.network.credentials import MAX_CREDENTIAL_BYTES, MAX_METADATA_BYTES
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

PASSING = (1_000, 7_600, 8_200, 12_000, 16_400, 24_000, MAX_CREDENTIAL_BYTES)
REFUSED = (MAX_CREDENTIAL_BYTES + 1, 40_000, 64_000, 100_000)
REPEATS = 12  # a limit that refuses at random shows in some of them
COOKIES = (("cookie", "c" * 20_000), ("baggage", "b" * 8_000))


def bearing(size: int) -> tuple[tuple[str, str], ...]:
    return (("authorization", "Bearer " + "x" * size),)


def message(size: int) -> str:
    return f"the credential has {size} bytes and the limit is {MAX_CREDENTIAL_BYTES}; use a shorter one"


def check(error: grpc.aio.AioRpcError, details_of: Any, size: int) -> None:
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (error.details() or "").startswith(message(size))
    details = details_of(error)
    assert (details.reason, details.values) == (
        "CREDENTIAL_TOO_LONG",
        {"bytes": str(size), "limit": str(MAX_CREDENTIAL_BYTES)},
    )
    assert (details.retry_seconds, details.pushback_ms) == (None, None), "a retry would fail again"


@pytest.mark.parametrize("size", PASSING)
async def test_a_credential_up_to_the_limit_passes_every_time(served, size):
    async with grpc.aio.insecure_channel(served.address) as channel:  # its header tables are empty
        stub: Any = tts_pb2_grpc.VoxCPMServiceStub(channel)
        calls = [stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=bearing(size)) for _ in range(REPEATS)]
        assert all(await asyncio.gather(*calls))
    assert (await served.generate("Hello.", metadata=(*bearing(size), *COOKIES)))[-1].HasField("summary")


@pytest.mark.parametrize("size", REFUSED)
async def test_a_longer_credential_is_refused_every_time_with_both_lengths(served, details_of, size):
    for number in range(REPEATS):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await served.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=bearing(size), timeout=HANG_SECONDS)
        check(raised.value, details_of, size)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            if number < 2:  # the server lingers for the messages of a stream
                await served.generate("Hello.", metadata=bearing(size))
            else:
                await served.stub.ListVoices(pb.ListVoicesRequest(), metadata=(*COOKIES, *bearing(size)))
        check(raised.value, details_of, size)


async def test_other_metadata_passes_every_time(served):
    for size in (8_200, 12_000, 20_000, 30_000):
        for _ in range(REPEATS):
            metadata = (("baggage", "b" * size), *bearing(1_000))
            assert await served.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=metadata)


async def test_a_long_token_is_read_and_a_longer_one_is_not(serve_front, details_of, tmp_path):
    file = tmp_path / "jwks.json"
    file.write_text(document("ES256"))
    async with serve_front(server={"auth": {"jwks": str(file)}}) as served:
        signed = token("ES256", groups="g" * 20_000)
        metadata = (("authorization", f"Bearer {signed}"),)
        assert len(signed) > 16_384
        assert await served.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=metadata)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await served.stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=bearing(50_000))
        check(raised.value, details_of, 50_000)


async def test_the_admin_port_and_health_have_the_same_limit(tmp_path, details_of):
    async with operated(tmp_path) as server:
        for size in PASSING:
            assert await server.stats(metadata=bearing(size))
            request = health_pb2.HealthCheckRequest()
            assert await health_stub(server.channel).Check(request, metadata=bearing(size))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await server.stats(metadata=bearing(64_000))
        check(raised.value, details_of, 64_000)


def test_the_client_refuses_a_long_credential_before_it_calls():
    too_long = "x" * (MAX_CREDENTIAL_BYTES + 1)
    text = message(MAX_CREDENTIAL_BYTES + 1)
    with pytest.raises(InvalidArgument, match=text) as raised:
        Client(api_key=too_long)
    assert (raised.value.field, raised.value.reason) == ("api_key", "CREDENTIAL_TOO_LONG")
    with pytest.raises(InvalidArgument, match=text) as raised:
        AsyncClient(metadata={"Authorization": f"Bearer {too_long}"})
    assert raised.value.field == "metadata"
    with pytest.raises(InvalidArgument, match=text):
        AsyncClient().with_metadata({"authorization": f"Bearer {too_long}"})
    with pytest.raises(InvalidArgument, match=rf"metadata has \d+ bytes and the limit is {MAX_METADATA_BYTES}"):
        AsyncClient(metadata={"cookie": "c" * MAX_METADATA_BYTES})


async def test_the_client_sends_the_longest_credential_with_the_longest_metadata(served):
    others = {"cookie": "c" * (MAX_METADATA_BYTES - MAX_CREDENTIAL_BYTES - 200)}
    async with AsyncClient(served.address, api_key="x" * MAX_CREDENTIAL_BYTES, metadata=others) as client:
        for _ in range(REPEATS):
            assert await client.list_models()


async def test_the_client_words_the_refusals_of_grpc_itself(served):
    """A server of another program, with the limits of gRPC, and a request of many bytes."""
    plain = grpc.aio.server()
    port = plain.add_insecure_port("127.0.0.1:0")
    await plain.start()
    async with AsyncClient(f"127.0.0.1:{port}", api_key="x" * 20_000) as client:
        with pytest.raises(Exhausted, match="longer than the server, or a proxy before it, reads") as raised:
            await client.list_models()
    assert (raised.value.reason, raised.value.retry_after) == ("METADATA_TOO_LONG", None)
    await plain.stop(None)
    async with AsyncClient(served.address) as client:
        with pytest.raises(Exhausted, match=r"the request has \d+ bytes and the limit is \d+; send shorter") as raised:
            await client.get_voice("x" * (10 << 20))
    assert raised.value.reason == "MESSAGE_TOO_LARGE"


async def test_the_client_reads_long_trailers():
    async def answer(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        context.set_trailing_metadata((("set-cookie", "c" * 30_000),))
        return b""

    server = grpc.aio.server(
        options=[("grpc.max_metadata_size", 1 << 20), ("grpc.absolute_max_metadata_size", 1 << 20)]
    )
    handler = grpc.unary_unary_rpc_method_handler(answer)
    name = "voxcpm_grpc.v1.VoxCPMService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"ListModels": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with AsyncClient(f"127.0.0.1:{port}") as client:
        for _ in range(REPEATS):
            assert await client.list_models() == []
    await server.stop(None)
