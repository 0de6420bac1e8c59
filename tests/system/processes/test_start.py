"""A server is alive, and says what it does, while its model is downloaded and loaded."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import IO

import grpc
import psutil
import pytest
import torch
from grpc_health.v1 import health_pb2
from support.clients.grpc_types import health_stub, message_of
from support.engines.checkpoints import TINY
from support.servers.ports import free_address
from support.servers.running import UNTIMED, serving
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, wait_until

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def silent_hub(monkeypatch):
    """A repository host that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", f"{NEVER_SECONDS:g}")
        yield


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
        rf"fronts: {fronts}, as fronts says; --fronts N sets another number",
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


def test_a_gpu_that_is_not_there_ends_the_start_with_the_number_there_is(tmp_path):
    count = torch.cuda.device_count()
    refused = pytest.raises(AssertionError, match=rf"\nError: .*'cuda:{count}' and PyTorch finds {count} GPUs")
    with refused, serving(tmp_path, "--devices", f"cpu,{count}"):
        pass
