"""A server whose port is open while its model loads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.clients.grpc_types import health_stub, message_of
from support.doubles.fake_engine import MakeFake
from support.doubles.pools import Launcher, pool_with
from support.servers.ports import free_address
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.checkpoint import DOWNLOADING
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.pool import warm_up
from voxcpm_grpc.progress import Progress
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server import start
from voxcpm_server.app import running_server
from voxcpm_server.services.server import RpcServer
from voxcpm_server.start import Start

SERVICE = "voxcpm_grpc.v1.VoxCPMService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@contextlib.asynccontextmanager
async def loading(**options: Any) -> AsyncIterator[grpc.aio.Channel]:
    """The channel to a server that loads its model."""
    rpc = RpcServer(Settings(listen="127.0.0.1:0"), **options)
    try:
        address = await rpc.open()
        rpc.report_start("the model is loading")
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
    finally:
        await rpc.stop()


@pytest.fixture
async def starting():
    async with loading() as channel:
        yield channel


async def test_calls_are_refused_with_a_time_to_try_again(starting, details_of):
    stub = tts_pb2_grpc.VoxCPMServiceStub(starting)
    names = [method.name for method in pb.DESCRIPTOR.services_by_name["VoxCPMService"].methods]
    assert len(names) == 11
    for name in names:
        method = getattr(stub, name)
        kind = getattr(pb, f"{name}Request")
        call = method(iter([kind()])) if isinstance(method, STREAMING) else method(kind())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            if isinstance(call, grpc.aio.UnaryUnaryCall | grpc.aio.StreamUnaryCall):
                await call
            else:
                await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, name
        assert "the model is loading" in message_of(caught.value)
        assert details_of(caught.value).retry_seconds == 1.0


STREAMING = (grpc.aio.StreamUnaryMultiCallable, grpc.aio.StreamStreamMultiCallable)


class Clock:
    """The clock of a start; a test sets the time."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(start, "time", clock)
    return clock


async def test_refusals_have_the_seconds_that_the_time_so_far_suggests(clock, details_of):
    begun = Start()
    async with loading(expected_seconds=begun.remaining) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        for passed, seconds in ((4.0, 11.0), (13.0, 2.0), (14.9, 1.49), (60.0, 6.0), (10_000.0, 60.0)):
            clock.now = 1000.0 + passed
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetModelInfo(pb.GetModelInfoRequest())
            details = details_of(caught.value)
            assert details.retry_seconds == pytest.approx(seconds, abs=2e-3)
            assert details.pushback_ms == pytest.approx(1000 * seconds, abs=2)
            assert f"try again in about {seconds:.0f} s" in message_of(caught.value)


def test_counts_of_a_step_lengthen_the_estimate(clock):
    begun = Start()
    begun.on_progress(Progress("kernels are being compiled", 0, 80, source="engine auto"))
    clock.now += 20.0
    begun.on_progress(Progress("kernels are being compiled", 40, 80, source="engine auto"))
    assert begun.remaining() == 20.0
    begun.on_progress(Progress("the engine is warming up", source="engine auto"))
    assert begun.remaining() == 2.0  # a tenth of what it took so far


def test_a_download_counts_its_bytes_and_not_as_part_of_a_start(clock):
    begun = Start()
    begun.on_progress(Progress(DOWNLOADING))
    assert begun.remaining() == start.DOWNLOAD_SECONDS + start.EXPECTED_SECONDS
    clock.now += 10.0
    begun.on_progress(Progress(DOWNLOADING, 10**9, 3 * 10**9, in_bytes=True))
    assert begun.remaining() == 20.0 + start.EXPECTED_SECONDS
    clock.now += 20.0
    begun.on_progress(Progress("the model is loading"))
    clock.now += 7.0
    assert begun.remaining() == start.EXPECTED_SECONDS - 7.0


async def test_an_unknown_method_is_unimplemented(starting):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await starting.unary_unary(f"/{SERVICE}/Sing")(b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_health_is_not_serving_and_liveness_is(starting):
    health = health_stub(starting)
    for name, status in (("", NOT_SERVING), (SERVICE, NOT_SERVING), ("liveness", SERVING)):
        assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == status
        watch = health.Watch(health_pb2.HealthCheckRequest(service=name))
        assert (await watch.read()).status == status
        watch.cancel()
    if "List" not in vars(health):  # of grpcio-health-checking 1.71.2
        return
    messages: Any = health_pb2  # its types are older than this method
    listed = await vars(health)["List"](messages.HealthListRequest())
    assert {name: answer.status for name, answer in listed.statuses.items()} == {
        "": NOT_SERVING,
        SERVICE: NOT_SERVING,
        "liveness": SERVING,
    }


async def test_reflection_works(starting):
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(starting)
    call = stub.ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=f"{SERVICE}.Generate"))
    assert (await call.read()).file_descriptor_response.file_descriptor_proto


async def test_health_is_serving_after_a_request_went_through_an_engine(monkeypatch, tmp_path):
    monkeypatch.setattr(warm_up, "WARM_UP_TEXT", f"after {tmp_path / 'go'}")
    may_stop = asyncio.Event()

    async def serve() -> None:
        async with running_server(settings, pool=pool_with(Launcher([MakeFake()]))):
            await may_stop.wait()

    address = free_address()
    settings = Settings(
        listen=address, decode_workers=1, drain_delay_seconds=0, voices=VoiceSettings(url=str(tmp_path))
    )
    server = asyncio.create_task(serve())
    async with grpc.aio.insecure_channel(address) as channel:
        stub, request = tts_pb2_grpc.VoxCPMServiceStub(channel), pb.GetModelInfoRequest()
        while True:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetModelInfo(request, wait_for_ready=True, timeout=HANG_SECONDS)
            if "a first request runs on each engine" in message_of(caught.value):
                break
            await asyncio.sleep(0.01)
        watch: Any = health_stub(channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == NOT_SERVING
        (tmp_path / "go").touch()
        assert (await watch.read()).status == SERVING
        assert (await stub.GetModelInfo(request)).model == "fake"
        watch.cancel()
    may_stop.set()
    await server


async def test_a_first_request_that_fails_is_an_error_of_the_start(monkeypatch, tmp_path):
    monkeypatch.setattr(warm_up, "WARM_UP_TEXT", "fail")
    settings = Settings(listen="127.0.0.1:0", decode_workers=1, voices=VoiceSettings(url=str(tmp_path)))
    pool = pool_with(Launcher([MakeFake()]))
    with pytest.raises(StartupError, match="the warm-up request of engine failed"):
        async with running_server(settings, pool=pool):
            raise AssertionError("the server is ready")
