"""The only engine of several fronts is killed: its callers wait, and the metrics count one restart."""

from __future__ import annotations

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
from prometheus_client.parser import text_string_to_metric_families
from support.servers.ports import free_port
from support.servers.running import Server, serving
from support.servers.streams import texts
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_grpc.v1 import tts_pb2_grpc

CALLERS = 8


def samples(port: int, name: str) -> list[float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HANG_SECONDS) as page:
        families = text_string_to_metric_families(page.read().decode())
        return [sample.value for family in families for sample in family.samples if sample.name == name]


def child(server: Server, title: str) -> psutil.Process:
    [found] = [one for one in psutil.Process(server.process.pid).children() if title in " ".join(one.cmdline()[:1])]
    return found


def speak(address: str) -> int:
    """Speak over a connection of its own, and without retries of the client. Returns the number of samples."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    with grpc.insecure_channel(address, options) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        return list(stub.Generate(texts("Hello there."), timeout=HANG_SECONDS))[-1].summary.total_samples


def test_callers_of_all_fronts_wait_for_the_engine_and_one_restart_is_counted(tmp_path: Path):
    port = free_port()
    flags = ("--devices", "cpu:1", "--fronts", "2", "--metrics.listen", f"127.0.0.1:{port}")
    wait = ("--limits.max-queue-seconds", f"{HANG_SECONDS:g}")
    with serving(tmp_path, *flags, *wait) as server, ThreadPoolExecutor(CALLERS) as threads:
        assert samples(port, "voxcpm_engine_restarts_total") == [0.0]
        child(server, "engine").kill()
        assert min(threads.map(lambda _: speak(server.address), range(CALLERS))) > 0
        assert "code=UNAVAILABLE" not in server.log
        assert samples(port, "voxcpm_engine_restarts_total") == [1.0]
        assert sum(samples(port, "voxcpm_model_requests_waiting")) == 0.0
        child(server, "front 0").kill()
        wait_until(lambda: answers(port))
        assert samples(port, "voxcpm_engine_restarts_total") == [1.0], "the host counts them, not the front"


def answers(port: int) -> bool:
    """True if a front that was started again has its engine."""
    try:
        return samples(port, "voxcpm_engine_up") == [1.0]
    except OSError:
        return False
