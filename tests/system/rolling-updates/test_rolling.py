"""Two servers behind a standard client that balances by itself, while one after the other is restarted."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from support.clients.calling_clients import BACKOFF_SECONDS, Calls, calling, service_config
from support.clients.grpc_types import message_of
from support.servers.ports import free_address
from support.servers.running import Server, serving
from support.servers.streams import PausedStream
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, wait_until

from voxcpm_grpc.v1 import tts_pb2_grpc

HERE = Path(__file__).parent
PROTO = HERE.parents[2] / "protos/voxcpm_grpc/v1/tts.proto"
DRAIN = ("--drain-seconds", f"{NEVER_SECONDS:g}")
# A call that a leaving server refuses reaches the other one in this time on a busy host, too. One that waits until gRPC
# connects again takes a second at least.
RETRY_SECONDS = 0.9
STEADY = service_config("UNAVAILABLE", watch_health=False)


class Replica:
    """A server that is stopped and started again at one address."""

    def __init__(self, voices: Path, *flags: str) -> None:
        self.address = free_address()
        self._flags = (*DRAIN, *flags, "--listen", self.address)
        self._voices = voices
        self._running = ExitStack()
        self.server: Server
        self.start()

    def start(self) -> None:
        self.server = self._running.enter_context(serving(self._voices, *self._flags))

    def stop(self) -> None:
        self.server.terminate()
        assert self.server.process.wait(HANG_SECONDS) == 0
        self._running.close()

    def close(self) -> None:
        self._running.close()


@contextmanager
def replica(voices: Path, *flags: str) -> Iterator[Replica]:
    made = Replica(voices, *flags)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def staying(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """A server that no test stops."""
    with replica(tmp_path_factory.mktemp("staying")) as made:
        yield made


def assert_as_fast(balanced: Calls, steady: Calls, since: tuple[int, int]) -> None:
    """The calls of a client are as fast as those of a client of the server that stays, at the same time.

    Nine of ten are compared: a host that rests for a second delays a few calls of the first, and perhaps none of the
    other.
    """
    slow, reference = (
        float(np.percentile(calls.seconds[start:], 90)) for calls, start in zip((balanced, steady), since, strict=True)
    )
    assert slow <= 2 * reference + RETRY_SECONDS, (slow, reference)
    assert max(balanced.seconds[since[0] :]) < BACKOFF_SECONDS, "no call waits for the backoff of the policy"


def test_no_call_fails_while_one_server_after_the_other_is_restarted(tmp_path):
    """A server of one process, and one of two fronts."""
    delay = ("--drain-delay-seconds", "2")
    config = service_config("UNAVAILABLE", watch_health=True)
    with (
        replica(tmp_path, *delay) as first,
        replica(tmp_path, *delay, "--fronts", "2") as second,
        calling([first.address, second.address], config) as calls,
    ):
        for leaving, staying in ((first, second), (second, first)):
            with calling([staying.address], STEADY, threads=1) as steady:
                since = len(calls.seconds), len(steady.seconds)
                leaving.stop()
                calls.made(50)
                assert_as_fast(calls, steady, since)
            leaving.start()
            calls.made(50)
        assert calls.failures == []


def test_no_call_fails_without_a_watch_of_health_and_without_a_delay(tmp_path, staying):
    """A call that arrives between the end of a server and the client's notice of it ends with CANCELLED."""
    config = service_config("UNAVAILABLE", "CANCELLED", watch_health=False)
    with (
        replica(tmp_path, "--drain-delay-seconds", "0") as leaving,
        calling([leaving.address, staying.address], config) as calls,
        calling([staying.address], STEADY, threads=1) as steady,
    ):
        since = len(calls.seconds), len(steady.seconds)
        leaving.server.terminate()
        calls.made(200)
        assert calls.failures == []
        assert_as_fast(calls, steady, since)


def test_a_stream_in_progress_finishes_on_the_server_that_leaves(tmp_path, staying):
    stream = PausedStream()
    config = service_config("UNAVAILABLE", watch_health=True)
    delay = ("--drain-delay-seconds", "2")
    with replica(tmp_path, *delay) as leaving, grpc.insecure_channel(leaving.address) as channel:
        speech = tts_pb2_grpc.VoxCPMServiceStub(channel).Generate(stream.messages())
        next(speech)
        with calling([leaving.address, staying.address], config) as calls:
            leaving.server.terminate()
            wait_until(lambda: refused(leaving.address))
            calls.made(100)
            assert calls.failures == []
        assert leaving.server.process.poll() is None
        stream.resume()
        assert list(speech)[-1].summary.segments == 2
        assert leaving.server.process.wait(HANG_SECONDS) == 0


def refused(address: str) -> bool:
    """True if no connection can be made."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) != 0


@pytest.mark.parametrize("fronts", [1, 2])
def test_a_stream_that_is_cut_off_says_so(tmp_path, fronts):
    stream = PausedStream()
    flags = ("--drain-seconds", "2", "--fronts", f"{fronts}")
    with serving(tmp_path, *flags) as server, grpc.insecure_channel(server.address) as channel:
        speech = tts_pb2_grpc.VoxCPMServiceStub(channel).Generate(stream.messages())
        while not next(speech).sample_count:
            pass
        server.terminate()
        with pytest.raises(grpc.RpcError) as caught:
            list(speech)
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert "shutting down" in message_of(caught.value)
        assert "drain_seconds, 2 s" in message_of(caught.value)
        assert server.process.wait(HANG_SECONDS) == 0
        stream.resume()


def test_node_reaches_the_other_server(tmp_path, staying):
    """grpc-js, with a retry policy and round robin."""
    config = service_config("UNAVAILABLE", "CANCELLED", watch_health=False)
    with replica(tmp_path) as leaving:
        command = ["node", HERE / "callers.js", PROTO, f"ipv4:{leaving.address},{staying.address}", config]
        node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert node.stdout is not None
            assert node.stdout.readline() == "calls\n"
            before = leaving.server.calls("GetModelInfo"), staying.server.calls("GetModelInfo")
            assert min(before) > 0
            leaving.stop()
            wait_until(lambda: staying.server.calls("GetModelInfo") > before[1] + 50)
            output, _ = node.communicate("end\n", timeout=HANG_SECONDS)
            assert output == "no call failed\n"
        finally:
            node.kill()
            node.wait()
