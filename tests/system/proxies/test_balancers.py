"""Two servers that share their voices, behind a load balancer with the file that ships: one server to its callers."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.clients.short_speech import SHORT
from support.clients.unread_streams import SMALL_WINDOW, STEPS, Listener
from support.servers.proxies import PROXIES, Proxy
from support.servers.running import Server, serving
from support.servers.streams import PausedStream
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until, wait_until

from voxcpm_client import AsyncClient, Client, Exhausted, InvalidArgument, NotFound, SpeechError, Unavailable
from voxcpm_grpc.network.credentials import MAX_CREDENTIAL_BYTES
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

ROOT = Path(__file__).parents[3]
TESTS = ("tests/e2e", *(f"tests/conformance/test_{name}.py" for name in ("error_table", "order", "uploads")))
LONG = "A sentence that takes its time to be spoken, as it is long, and longer than anyone would want to listen. "

SHORT_STEPS = 4
PAUSE_SECONDS = 0.05
DELAY_SECONDS = 8.0  # load balancers notice within two checks, one a second; a busy host may delay them


@dataclass(frozen=True)
class Site:
    """Two servers and the load balancer in front of them."""

    proxy: Proxy
    address: str
    servers: tuple[Server, ...]


@contextmanager
def site(proxy: Proxy, folder: Path, *flags: str) -> Iterator[Site]:
    with ExitStack() as stack:
        drain = ("--drain-seconds", f"{NEVER_SECONDS:g}", "--drain-delay-seconds", f"{DELAY_SECONDS:g}")
        pings = ("--keepalive-seconds", "600")  # a proxy answers none while it waits for a client that does not read
        servers = tuple(stack.enter_context(serving(folder / "voices", *drain, *pings, *flags)) for _ in range(2))
        address = stack.enter_context(proxy.running(folder, [server.address for server in servers]))
        yield Site(proxy, address, servers)


@pytest.fixture(scope="module", params=PROXIES, ids=lambda proxy: proxy.name)
def lasting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """For tests that leave both servers as they are, and the last one, which kills them."""
    with site(request.param, tmp_path_factory.mktemp("lasting")) as running:
        yield running


@pytest.fixture(params=PROXIES, ids=lambda proxy: proxy.name)
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    """For a test that ends a server."""
    with site(request.param, tmp_path) as running:
        yield running


def test_the_tests_of_any_server_pass_and_both_servers_take_part(lasting):
    command = [
        sys.executable,
        "-m",
        "pytest",
        *TESTS,
        *(("-k", lasting.proxy.deselected) if lasting.proxy.deselected else ()),
        "--target",
        lasting.address,
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580)
    assert done.returncode == 0, done.stdout
    calls = [server.calls("Generate") for server in lasting.servers]
    assert min(calls) > 0.2 * sum(calls)


async def test_streams_that_are_not_read_hold_up_no_other_stream_of_their_client(lasting):
    async with grpc.aio.insecure_channel(lasting.address, SMALL_WINDOW) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        unread = [Listener(stub, seed) for seed in range(4)]
        for listener in unread:
            await listener.first_audio()
        for seed in range(2 * STEPS // SHORT_STEPS):  # meanwhile all audio of the others is made
            assert len(await Listener(stub, seed, SHORT_STEPS).rest())
        assert all([len(await listener.rest()) for listener in unread])


async def open_stream(client: AsyncClient, **options: Any) -> None:
    """Speak on a stream that stays open for more text, until its first audio."""
    async with client.session(**SHORT, **options) as session:
        await session.send_text("Hello. ")
        await anext(session)


async def test_a_stream_that_is_still_open_gets_the_status_of_its_server(lasting):
    """HAProxy resets such a stream after the status, which grpcio then overwrites."""
    async with AsyncClient(lasting.address, timeout=HANG_SECONDS) as client:
        for _ in range(10):
            with pytest.raises(NotFound, match="there is no voice") as missing:
                await open_stream(client, voice="nobody")
            assert (missing.value.reason, missing.value.details) == ("VOICE_NOT_FOUND", {"voice": "nobody"})
            with pytest.raises(InvalidArgument, match="speed is 9") as invalid:
                await open_stream(client, speed=9.0)
            assert invalid.value.field == "config.turn.speed"


async def test_a_token_of_the_longest_length_passes_and_a_longer_one_is_refused_by_the_server(lasting):
    async with grpc.aio.insecure_channel(lasting.address) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        for size in (16 << 10, MAX_CREDENTIAL_BYTES):
            metadata = (("authorization", "Bearer " + "x" * size), ("baggage", "y" * 8000))
            assert await stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=metadata, timeout=HANG_SECONDS)
        metadata = (("authorization", "Bearer " + "x" * (MAX_CREDENTIAL_BYTES + 1)),)
        with pytest.raises(grpc.aio.AioRpcError, match="credential has 32769 bytes and the limit is 32768"):
            await stub.GetModelInfo(pb.GetModelInfoRequest(), metadata=metadata, timeout=HANG_SECONDS)


@pytest.mark.parametrize("proxy", PROXIES, ids=lambda proxy: proxy.name)
async def test_an_open_stream_waits_for_capacity_as_its_server_asks(proxy: Proxy, tmp_path: Path) -> None:
    with site(proxy, tmp_path, "--limits.max-streams", "1") as full:
        async with AsyncClient(full.address, timeout=HANG_SECONDS) as client, asyncio.timeout(HANG_SECONDS):
            async with AsyncExitStack() as others:
                for _ in full.servers:
                    session = await others.enter_async_context(client.session(**SHORT))
                    await session.send_text("Hello. ")
                    await anext(session)
                with pytest.raises(Exhausted) as refused:
                    async with AsyncClient(full.address, retries=0) as impatient:
                        await open_stream(impatient)
                assert (refused.value.reason, refused.value.retry_after) == ("TOO_MANY_STREAMS", 1.0)
                waiting = asyncio.ensure_future(open_stream(client))
                await until(lambda: sum(server.log.count("code=RESOURCE_EXHAUSTED") for server in full.servers) >= 2)
            await waiting


class Talk:
    """A stream that speaks on whichever server it got."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._stream = PausedStream(LONG)
        self._call = tts_pb2_grpc.VoxCPMServiceStub(self._channel).Generate(self._stream.messages(), timeout=300)
        while not next(self._call).sample_count:
            pass

    def finish(self) -> list[pb.AudioChunk]:
        self._stream.resume()
        with self._channel:
            return list(self._call)


def speak_on(address: str, seconds: float, retries: int = 4) -> tuple[int, list[SpeechError]]:
    """Calls with pauses, each on a connection of its own: how many succeeded, and what the others met."""
    spoken, errors, ends = 0, [], time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(PAUSE_SECONDS)
        with Client(address, timeout=HANG_SECONDS, retries=retries) as client:
            try:
                summary = client.say("Hello.", **SHORT).summary
                assert summary is not None
                spoken += summary.total_samples > 0
            except SpeechError as error:
                errors.append(error)
    return spoken, errors


def test_a_server_drains_without_cutting_anyone_off(shared):
    leaving, staying = shared.servers
    talks = [Talk(shared.address) for _ in range(4)]
    leaving.terminate()
    spoken, errors = speak_on(shared.address, DELAY_SECONDS + 4, retries=0 if shared.proxy.asks_health else 4)
    assert spoken
    assert errors == []
    for talk in talks:
        assert talk.finish()[-1].HasField("summary")
    leaving.process.wait(HANG_SECONDS)
    assert leaving.process.returncode == 0
    before = staying.calls("Generate")
    spoken, errors = speak_on(shared.address, 1)
    assert errors == []
    wait_until(lambda: staying.calls("Generate") == before + spoken)


def test_a_server_that_dies_takes_only_its_own_streams_along(lasting):
    """The last test of these servers."""
    dying, last = lasting.servers
    talks = [Talk(lasting.address) for _ in range(4)]
    dying.kill()
    spoken, errors = speak_on(lasting.address, 4)
    assert spoken
    assert errors == []
    ended = [how_it_ends(talk) for talk in talks]
    assert ended.count("complete") == 2  # those of the other server
    assert set(ended) <= {"complete", *lasting.proxy.ends}  # a load balancer resets what it cannot end,
    with Client(lasting.address, timeout=HANG_SECONDS) as client, client.speak(LONG * 20) as stream:
        next(stream)
        last.kill()
        with pytest.raises(Unavailable, match="connection was cut"):  # or ends it without a status
            list(stream)


def how_it_ends(talk: Talk) -> str:
    try:
        assert talk.finish()[-1].HasField("summary")
    except grpc.RpcError as error:
        return error.code().name
    return "complete"
