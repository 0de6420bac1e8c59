"""One connection, and one caller, can use only a share of the streams, the memory for uploads and the voices."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from support.clients.callers import calling_from
from support.servers.uploads import add_prompt, recording, upload
from support.servers.waiting import until

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.rpc.call import Peer

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
OTHER = "127.0.0.2"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason=f"only Linux has the address {OTHER} without setup")


@asynccontextmanager
async def connected(address: str):
    """A client with a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        yield tts_pb2_grpc.VoxCPMServiceStub(channel)


@asynccontextmanager
async def other_caller(served: Any):
    async with calling_from(OTHER, served.address) as address, connected(address) as stub:
        yield stub


async def open_streams(served: Any, stub: Any, count: int) -> list[Any]:
    """Streams that get no further than their header."""
    before = served.gate.streams
    calls = [stub.Generate() for _ in range(count)]
    await until(lambda: served.gate.streams == before + count)
    return calls


async def speaks(stub: Any) -> bool:
    messages = iter([pb.GenerateRequest(text="Hello.")])
    return any([chunk.audio async for chunk in stub.Generate(messages)])


async def test_one_connection_does_not_shut_the_others_out(serve_front, details_of):
    async with serve_front(max_streams=64) as served, connected(served.address) as another:
        calls = await open_streams(served, served.stub, 32)
        with pytest.raises(grpc.aio.AioRpcError, match=r"this connection has 32 .* limit is 32; end one") as caught:
            await speaks(served.stub)
        assert caught.value.code() is EXHAUSTED
        assert details_of(caught.value).retry_seconds
        assert await speaks(another)
        calls[0].cancel()
        await until(lambda: served.gate.streams == 31)
        assert await speaks(served.stub)


async def test_one_caller_does_not_shut_the_others_out(serve_front, details_of):
    async with (
        serve_front(max_streams=64) as served,
        connected(served.address) as another,
        other_caller(served) as other,
    ):
        await open_streams(served, served.stub, 32)
        await open_streams(served, another, 16)
        with pytest.raises(grpc.aio.AioRpcError, match=r"this caller has 48 .* limit is 48; end one") as caught:
            await speaks(another)
        assert caught.value.code() is EXHAUSTED
        assert details_of(caught.value).retry_seconds
        assert await speaks(other)


async def test_zero_turns_the_shares_off(serve_front):
    async with serve_front(max_streams=64, max_streams_per_connection=0, max_streams_per_caller=0) as served:
        await open_streams(served, served.stub, 64)
        with pytest.raises(grpc.aio.AioRpcError, match="64 streams are open and the limit is 64"):
            await speaks(served.stub)


async def test_shares_follow_the_number_of_streams_and_can_be_set(serve_front):
    async with serve_front(max_streams=500, max_streams_per_connection=3) as served:
        await open_streams(served, served.stub, 3)
        with pytest.raises(grpc.aio.AioRpcError, match="this connection has 3 open streams and the limit is 3"):
            await speaks(served.stub)


async def begun(served: Any, stub: Any, size: int) -> Any:
    """An upload that has sent this many bytes and pauses."""
    call, before = stub.AddPrompt(), served.uploads.held
    await call.write(pb.AddPromptRequest(config=pb.AddPromptConfig(transcript="Hi.")))
    await call.write(pb.AddPromptRequest(audio=pb.AudioPart(data=bytes(size))))
    await until(lambda: served.uploads.held == before + size)
    return call


async def add(stub: Any, seed: int = 0, transcript: str = "Hi there.") -> pb.VoiceHandle:
    messages = upload(pb.AddPromptRequest, pb.AddPromptConfig(transcript=transcript), (0, recording(seed)))
    chunks = [chunk async for chunk in stub.AddPrompt(iter(list(messages)))]
    return chunks[0].handle


async def test_one_caller_does_not_take_all_the_memory_for_uploads(serve_front, details_of):
    limits = {"max_upload_bytes_total": 40_000, "max_upload_bytes_per_caller": 20_000}
    async with serve_front(**limits) as served, other_caller(served) as other:
        held = await begun(served, served.stub, 15_000)
        with pytest.raises(grpc.aio.AioRpcError, match=r"this caller hold \d+ bytes and the limit is 20000") as caught:
            await add(served.stub)
        assert caught.value.code() is EXHAUSTED
        assert details_of(caught.value).retry_seconds
        assert (await add(other)).id
        held.cancel()
        await served.idle()
        assert (await add(served.stub)).reused
        assert served.uploads.held == 0


async def test_one_caller_does_not_fill_the_voice_store(serve_front, details_of):
    async with serve_front(max_voices=4) as served, other_caller(served) as other:
        mine = [await add(served.stub, transcript=text) for text in ("One.", "Two.", "Three.")]
        with pytest.raises(grpc.aio.AioRpcError, match=r"this caller has 3 stored voices .* limit is 3") as caught:
            await add(served.stub, transcript="Four.")
        assert caught.value.code() is EXHAUSTED
        assert details_of(caught.value).retry_seconds
        assert (await add(served.stub, transcript="One.")).reused  # needs no room
        assert (await add(other, transcript="Four.")).id
        with pytest.raises(grpc.aio.AioRpcError, match="room for 4 voices"):
            await add(other, transcript="Five.")
        await served.stub.DeleteVoice(pb.DeleteVoiceRequest(id=mine[0].id))
        assert (await add(served.stub, transcript="Five.")).id


async def test_the_store_names_no_caller(served):
    await add_prompt(served)
    names = [path.name for path in served.directory.rglob("*")]
    assert any(name.endswith(".owner") for name in names)
    contents = b"".join(path.read_bytes() for path in served.directory.rglob("*") if path.is_file())
    assert b"127.0.0.1" not in contents and not any("127.0.0.1" in name for name in names)


@pytest.mark.parametrize(
    ("address", "caller", "connection"),
    [
        ("ipv4:192.0.2.7:50123", "192.0.2.7", "192.0.2.7:50123"),
        ("ipv6:%5B::1%5D:50123", "::/64", "[::1]:50123"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:1", "2001:db8:1:2::/64", "[2001:db8:1:2:3:4:5:6]:1"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:1", "192.0.2.7", "[::ffff:192.0.2.7]:1"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "fe80::/64", "[fe80::1%eth0]:1"),
        ("unix:", "unix", ""),
        ("unix:/run/voxcpm.sock", "unix", ""),
        ("unknown", "unknown", ""),
    ],
)
def test_a_peer_is_read_from_an_address(address, caller, connection):
    assert Peer.of(address) == Peer(caller=caller, connection=connection)
