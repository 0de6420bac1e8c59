"""A server whose port is open while its model loads."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from typing import IO, Any

import grpc
import psutil
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.checkpoints import TINY
from support.fake_engine import MakeFake
from support.grpc_types import health_stub, message_of
from support.pools import patient
from support.servers import UNTIMED
from support.waiting import HANG_SECONDS, NEVER_SECONDS, wait_until

from voxcpm_grpc.checkpoint import DOWNLOADING
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.pool import engine_pool
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.handle import ProcessHandle
from voxcpm_grpc.progress import Progress
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server import start
from voxcpm_server.app import running_server
from voxcpm_server.rpc.server import RpcServer
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
    assert len(names) == 10
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


async def test_refusals_have_the_seconds_that_the_last_start_suggests(clock, tmp_path, details_of):
    earlier = Start(Settings(), file=tmp_path / "cache" / "starts.json")
    clock.now += 20.0
    earlier.finish()
    begun = Start(Settings(), file=tmp_path / "cache" / "starts.json")
    async with loading(expected_seconds=begun.remaining) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        for passed, seconds in ((4.0, 16.0), (18.0, 2.0), (19.9, 1.99), (60.0, 6.0), (10_000.0, 60.0)):
            clock.now = 1020.0 + passed
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetModelInfo(pb.GetModelInfoRequest())
            details = details_of(caught.value)
            assert details.retry_seconds == pytest.approx(seconds, abs=2e-3)
            assert details.pushback_ms == pytest.approx(1000 * seconds, abs=2)
            assert f"try again in about {seconds:.0f} s" in message_of(caught.value)


@pytest.mark.parametrize("content", ["", "[]", '{"a": "b"}', None])
def test_the_first_start_has_an_estimate_without_a_record(clock, tmp_path, content):
    if content is not None:
        (tmp_path / "starts.json").write_text(content)
    begun = Start(Settings(), file=tmp_path / "starts.json")
    assert begun.remaining() == start.UNKNOWN_SECONDS


def test_a_start_of_other_engines_has_no_influence_on_the_estimate(clock, tmp_path):
    earlier = Start(Settings(), file=tmp_path / "starts.json")
    clock.now += 50.0
    earlier.finish()
    assert Start(Settings(devices=("cpu:2",)), file=tmp_path / "starts.json").remaining() == start.UNKNOWN_SECONDS
    assert Start(Settings(listen="127.0.0.1:1"), file=tmp_path / "starts.json").remaining() == 50.0


def test_counts_of_a_step_lengthen_the_estimate(clock, tmp_path):
    begun = Start(Settings(), file=tmp_path / "starts.json")
    begun.on_progress(Progress("kernels are being compiled", 0, 80, source="engine auto"))
    clock.now += 20.0
    begun.on_progress(Progress("kernels are being compiled", 40, 80, source="engine auto"))
    assert begun.remaining() == 20.0
    begun.on_progress(Progress("the engine is warming up", source="engine auto"))
    assert begun.remaining() == 2.0  # a tenth of what it took so far


def test_a_download_counts_its_bytes_and_not_as_part_of_a_start(clock, tmp_path):
    file = tmp_path / "starts.json"
    begun = Start(Settings(), file=file)
    begun.on_progress(Progress(DOWNLOADING))
    assert begun.remaining() == start.UNKNOWN_DOWNLOAD_SECONDS + start.UNKNOWN_SECONDS
    clock.now += 10.0
    begun.on_progress(Progress(DOWNLOADING, 10**9, 3 * 10**9, in_bytes=True))
    assert begun.remaining() == 20.0 + start.UNKNOWN_SECONDS
    clock.now += 20.0
    begun.on_progress(Progress("the model is loading"))
    clock.now += 7.0
    begun.finish()
    assert Start(Settings(), file=file).remaining() == 7.0


def test_a_home_that_cannot_be_written_does_not_fail_the_start(clock, tmp_path):
    (tmp_path / "file").touch()
    Start(Settings(), file=tmp_path / "file" / "starts.json").finish()


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


@pytest.fixture
def silent_hub(monkeypatch):
    """A repository host that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", f"{NEVER_SECONDS:g}")
        yield


def free_address() -> str:
    """The address of a port that nothing listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@contextlib.contextmanager
def starting_process(*flags: str, log: IO[str] | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that is not ready yet, and its address."""
    address = free_address()
    command = [sys.executable, "-m", "voxcpm_client", "serve", "--listen", address, *UNTIMED, *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        yield server, address
    finally:
        server.kill()
        server.communicate()


def test_a_server_is_alive_while_its_model_is_downloaded_and_a_signal_ends_it(silent_hub, tmp_path):
    with starting_process("--model", "nobody/nothing", "--cache-dir", str(tmp_path)) as (server, address):
        with grpc.insecure_channel(address) as channel:
            health = health_stub(channel)
            request = health_pb2.HealthCheckRequest(service="liveness")
            assert health.Check(request, timeout=HANG_SECONDS, wait_for_ready=True).status == SERVING
            stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
            wait_until(lambda: "the model is being downloaded" in refusal(stub))
        server.terminate()
        assert server.communicate(timeout=HANG_SECONDS)[0] == ""
        assert server.returncode == 0


def refusal(stub) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=HANG_SECONDS)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return message_of(caught.value)


@pytest.mark.parametrize("fronts", [1, 2])
def test_a_server_is_alive_before_its_engine_is_ready(tmp_path, fronts):
    """The process of the engine is suspended while it loads the model."""
    flags = ("--model", str(TINY), "--decode-workers", "1", "--fronts", str(fronts), "--voices.url", str(tmp_path))
    with (tmp_path / "log").open("w") as log, starting_process(*flags, log=log) as (server, address):
        wait_until(lambda: engines(server))
        with suspended(*engines(server)) as resume, grpc.insecure_channel(address) as channel:
            health = health_stub(channel)
            watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=2 * HANG_SECONDS, wait_for_ready=True)
            assert next(watch).status == NOT_SERVING
            alive = health_pb2.HealthCheckRequest(service="liveness")
            assert health.Check(alive, timeout=HANG_SECONDS).status == SERVING
            stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
            assert "the model is loading" in refusal(stub)
            resume()
            assert server.stdout is not None
            assert server.stdout.readline().startswith(f"listening on {address} ")
            assert next(watch).status == SERVING
            assert stub.GetModelInfo(pb.GetModelInfoRequest()).model == "tiny"
        server.terminate()
        assert server.wait(HANG_SECONDS) == 0
    log_text = (tmp_path / "log").read_text("utf-8")
    assert_in_order(
        log_text,
        r"start: engine auto: the model is loading: PyTorch",
        r"start: engine auto: the model is loading: its tensors, (\d+) of \1$",
        r"start: engine auto: the engine is warming up",
    )
    for front in ("front 0 ", "front 1 ") if fronts > 1 else ("",):
        assert_in_order(
            log_text,
            r" start: voxcpm-grpc \S+, model=",
            rf"INFO {front}\S+ start: the port {address} is open",
            rf"INFO {front}\S+ start: a first request runs on each engine",
            rf"INFO {front}\S+ start: the voices are loading",
            rf"INFO {front}\S+ start: the server is ready after \d",
        )


def assert_in_order(text: str, *patterns: str) -> None:
    at = 0
    for pattern in patterns:
        found = re.compile(pattern, re.MULTILINE).search(text, at)
        assert found, (pattern, text)
        at = found.end()


async def test_health_is_serving_after_a_request_went_through_an_engine(monkeypatch, tmp_path):
    monkeypatch.setattr(engine_pool, "WARM_UP_TEXT", f"after {tmp_path / 'go'}")
    may_stop = asyncio.Event()

    async def serve() -> None:
        async with running_server(settings, pool=EnginePool([lambda: ProcessHandle(MakeFake())], patient())):
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
    monkeypatch.setattr(engine_pool, "WARM_UP_TEXT", "fail")
    settings = Settings(listen="127.0.0.1:0", decode_workers=1, voices=VoiceSettings(url=str(tmp_path)))
    pool = EnginePool([lambda: ProcessHandle(MakeFake())], patient())
    with pytest.raises(StartupError, match="the warm-up request of engine failed"):
        async with running_server(settings, pool=pool):
            raise AssertionError("the server is ready")


@contextlib.contextmanager
def suspended(process: psutil.Process) -> Iterator[Callable[[], None]]:
    """Suspend a process until the call of the result, at most to the end of the block."""
    process.suspend()
    try:
        yield process.resume
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()  # while it is suspended it would not notice the end of its parent


def engines(server: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes of a server that are engines."""
    found = []
    for child in psutil.Process(server.pid).children():
        with contextlib.suppress(psutil.Error, IndexError):
            if child.cmdline()[0].startswith("voxcpm-grpc engine"):
                found.append(child)
    return found
