"""The standby process of whole servers, with one front and with several: it becomes the engine and ends with them."""

from __future__ import annotations

import os
import subprocess
import sys

import grpc
import psutil
import pytest
from support.engines.checkpoints import TINY
from support.servers.processes import command_of
from support.servers.running import Server, serving
from support.servers.streams import texts
from support.servers.waiting import HANG_SECONDS, wait_until

from voxcpm_grpc.v1 import tts_pb2_grpc


def pids(server: Server, title: str) -> list[int]:
    """The processes whose titles begin so."""
    children = psutil.Process(server.process.pid).children()
    return [one.pid for one in children if command_of(one).startswith(f"voxcpm-grpc {title}")]


def speak(server: Server) -> int:
    with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        return list(stub.Generate(texts("Hello there."), timeout=HANG_SECONDS))[-1].summary.total_samples


@pytest.mark.parametrize("fronts", [pytest.param("1", marks=pytest.mark.nightly), "2"])
def test_a_lost_engine_is_replaced_by_the_standby_process_and_all_end_with_the_server(tmp_path, fronts):
    options = ("--devices", "cpu:1", "--fronts", fronts, "--supervision.standby", "on")
    with serving(tmp_path, *options, "--limits.max-queue-seconds", f"{HANG_SECONDS:g}") as server:
        wait_until(lambda: "a standby process is prepared" in server.log)
        [waiting], [lost] = pids(server, "standby"), pids(server, "engine")
        assert speak(server) > 0
        psutil.Process(lost).kill()
        wait_until(lambda: f"starts in the standby process, {waiting}" in server.log)
        assert speak(server) > 0
        assert pids(server, "engine") == [waiting]
        wait_until(lambda: set(pids(server, "standby")) - {waiting})  # the next one, which is not prepared yet
        family = psutil.Process(server.process.pid).children(recursive=True)
        server.terminate()
        server.process.wait(HANG_SECONDS)
        assert not psutil.wait_procs(family, HANG_SECONDS)[1]


STARTED = """
import sys
from voxcpm_grpc.settings.sources import load
from voxcpm_grpc.worker.standby import PrepareFirst, StandbyProcess
from voxcpm_server import main

if __name__ == "__main__":
    standby = StandbyProcess(PrepareFirst(kernels=False))
    print(standby.process.pid, flush=True)
    main.serve(load(sys.argv[1:]), standby)
"""


@pytest.mark.parametrize("fronts", ["1", "2"])
def test_the_first_engine_starts_in_the_process_that_its_server_was_given(tmp_path, fronts):
    script = tmp_path / "serve.py"
    script.write_text(STARTED)
    flags = ["--model", str(TINY), "--listen", "127.0.0.1:0", "--devices", "cpu:1", "--fronts", fronts]
    flags += ["--voices.url", str(tmp_path / "voices"), "--drain-delay-seconds", "0"]
    server = subprocess.Popen([sys.executable, script, *flags], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        pid = int(server.stdout.readline())
        assert "listening on" in server.stdout.readline()
        assert command_of(psutil.Process(pid)).startswith("voxcpm-grpc engine")
    finally:
        server.terminate()
        server.wait(HANG_SECONDS)


def test_the_standby_process_ends_when_the_server_is_killed(tmp_path):
    with serving(tmp_path, "--devices", "cpu:1", "--supervision.standby", "on") as server:
        wait_until(lambda: "a standby process is prepared" in server.log)
        family = psutil.Process(server.process.pid).children(recursive=True)
        server.kill()
        assert not psutil.wait_procs(family, HANG_SECONDS)[1]


PREPARED = """
import ast, sys
from pathlib import Path
import torch
from triton.runtime.jit import JITFunction
from voxcpm_grpc.models.voxcpm import backend
from voxcpm_grpc.worker.standby import PrepareEngine

PrepareEngine((Path("missing"),))()
chosen = {
    node.module
    for function in ast.walk(ast.parse(Path(backend.__file__).read_text()))
    if isinstance(function, ast.FunctionDef)
    for node in ast.walk(function)
    if isinstance(node, ast.ImportFrom)
}
kernels = [
    value
    for name, module in list(sys.modules.items())
    if name.startswith("voxcpm_grpc.")
    for value in vars(module).values()
    if isinstance(value, JITFunction)
]
print(sorted(chosen - {"voxcpm_grpc.attention.flash", *sys.modules}))
print(len(kernels) > 20, [kernel for kernel in kernels if kernel.hash is None])
print(torch.cuda.is_initialized())
"""


def test_all_that_engines_choose_from_is_imported_and_hashed_and_no_device_is_used():
    pytest.importorskip("triton")
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", PREPARED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.stdout.splitlines() == ["[]", "True []", "False"], done.stderr
