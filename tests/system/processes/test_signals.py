"""Signals to a whole server."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

import grpc
import psutil
import pytest
from support.clients.grpc_types import message_of
from support.servers.running import serving
from support.servers.streams import PausedStream
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, wait_until

from voxcpm_grpc.v1 import tts_pb2_grpc


@pytest.mark.parametrize("fronts", [1, 2])
def test_ctrl_c_does_not_wait_for_the_drain_delay(tmp_path, fronts):
    never = f"{NEVER_SECONDS:g}"
    flags = ("--fronts", str(fronts), "--drain-seconds", never, "--drain-delay-seconds", never)
    with serving(tmp_path, *flags) as server:
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(HANG_SECONDS) == 0


JUST_READY = """
import asyncio, os, signal, time
from voxcpm_server.signals import ABORT_SECONDS, Signals

async def serve():
    signals = Signals()
    os.kill(os.getpid(), signal.SIGINT)  # before the event loop runs again
    print((await signals.wait(asyncio.Event().wait())).name, flush=True)
    time.sleep(3 * ABORT_SECONDS)  # streams end
    print("drained")

asyncio.run(serve())
"""


def test_a_signal_to_a_server_that_has_just_become_ready_lets_it_drain():
    done = subprocess.run([sys.executable, "-c", JUST_READY], capture_output=True, text=True, timeout=HANG_SECONDS)
    assert (done.stdout.split(), done.returncode) == (["SIGINT", "drained"], 0), done.stderr


@pytest.mark.parametrize(
    ("fronts", "delay"),
    [
        pytest.param(1, NEVER_SECONDS, id="one front in the delay before the drain"),
        pytest.param(2, 0.0, id="two fronts in the drain"),
        pytest.param(1, 0.0, id="one front in the drain", marks=pytest.mark.nightly),
        pytest.param(2, NEVER_SECONDS, id="two fronts in the delay before the drain", marks=pytest.mark.nightly),
    ],
)
def test_a_second_signal_tells_every_stream_that_it_ends(tmp_path, fronts, delay):
    flags = ("--fronts", str(fronts), "--drain-seconds", f"{NEVER_SECONDS:g}", "--drain-delay-seconds", f"{delay:g}")
    stream = PausedStream()
    with serving(tmp_path, *flags) as server, contextlib.ExitStack() as stack:
        stack.callback(stream.resume)
        family = psutil.Process(server.process.pid).children(recursive=True)
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        channels = [stack.enter_context(grpc.insecure_channel(server.address, options)) for _ in range(6)]
        calls = [tts_pb2_grpc.VoxCPMServiceStub(channel).Generate(stream.messages()) for channel in channels]
        for call in calls:
            while not next(call).HasField("flush_done"):
                pass
        server.terminate()
        wait_until(lambda: ("draining calls=" if not delay else "new calls are served for another") in server.log)
        server.terminate()
        for call in calls:
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert caught.value.code() is grpc.StatusCode.ABORTED
            assert "shutting down, and a second signal" in message_of(caught.value)
        assert server.process.wait(HANG_SECONDS) == 0
        assert not psutil.wait_procs(family, HANG_SECONDS)[1]
        assert not server.fault()
