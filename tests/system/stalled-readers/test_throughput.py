"""Clients that do not read, of grpc or with a closed HTTP/2 window, do not slow the streams of others down."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import grpc
import h2.config
import h2.connection
import h2.events
import h2.settings
import psutil
import pytest
from google.protobuf.duration_pb2 import Duration
from support.servers.running import Server, serving
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, wait_until

from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

TEXT = "A sentence that takes its time to be spoken, as it is long, and longer than anyone would want to listen. "
SERVERS = {"one front": (), "two fronts and engines": ("--fronts", "2", "--devices", "cpu:2")}
METHOD = "/voxcpm_grpc.v1.VoxCPMService/Generate"
STREAMS_PER_CONNECTION = 8
UNREAD_CALLS, CLOSED_WINDOWS = 64, 8
OTHERS, OTHERS_SEGMENTS = 8, 2  # as many streams at a time as an engine has slots
SEGMENT_STEPS = 40
LEAST = 0.85  # of the throughput without stalled streams; caches that others use change it by less, a slot by more
LEAST_PAIRS, MOST_PAIRS = 2, 12
QUIET_SECONDS = 0.5
IDLE_SHARE = 0.06  # of a core


@pytest.fixture(scope="module", params=["one front", pytest.param("two fronts and engines", marks=pytest.mark.nightly)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("voices"), *SERVERS[request.param]) as server:
        yield server


def request(segments: int, *, lead: int = 0) -> list[pb.GenerateRequest]:
    """The messages of a stream, with a lead of so many seconds, or that of the server."""
    sampling = pb.Sampling(seed=3, inference_timesteps=4, min_steps=SEGMENT_STEPS, max_steps=SEGMENT_STEPS)
    config = pb.GenerateConfig(turn=pb.TurnConfig(sampling=sampling))
    if lead:
        config.pacing.max_lead.CopyFrom(Duration(seconds=lead))
    return [pb.GenerateRequest(config=config), pb.GenerateRequest(text=TEXT * segments)]


# ---- clients that do not read


@contextlib.contextmanager
def unread_calls(address: str, count: int) -> Iterator[None]:
    """Calls of grpc whose messages are not read."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", 65536),
    ]
    ended = threading.Event()

    def messages() -> Iterator[pb.GenerateRequest]:
        yield from request(6, lead=1)
        ended.wait(NEVER_SECONDS)

    with contextlib.ExitStack() as stack:
        stack.callback(ended.set)
        for first in range(0, count, STREAMS_PER_CONNECTION):
            channel = stack.enter_context(grpc.insecure_channel(address, options))
            stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
            for _ in range(min(STREAMS_PER_CONNECTION, count - first)):
                stack.callback(stub.Generate(messages()).cancel)
        yield


@contextlib.contextmanager
def closed_windows(address: str, count: int) -> Iterator[None]:
    """Streams of connections whose flow control lets the server send headers and nothing else."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for first in range(0, count, STREAMS_PER_CONNECTION):
            connected = stack.enter_context(socket.create_connection((host, int(port)), HANG_SECONDS))
            stack.callback(Stalled(connected, address, min(STREAMS_PER_CONNECTION, count - first)).stop)
        yield


class Stalled:
    """A connection with an initial window of 0. A thread answers its pings and settings."""

    def __init__(self, connected: socket.socket, authority: str, streams: int) -> None:
        self._socket = connected
        self._http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._http.local_settings = h2.settings.Settings(
            client=True, initial_values={h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 0}
        )
        self._http.initiate_connection()
        data = b"".join(
            b"\0" + len(body).to_bytes(4, "big") + body
            for body in (message.SerializeToString() for message in request(6, lead=1))
        )
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":authority": authority,
            ":path": METHOD,
            "te": "trailers",
            "content-type": "application/grpc",
        }
        for _ in range(streams):
            stream = self._http.get_next_available_stream_id()
            self._http.send_headers(stream, list(headers.items()))
            self._http.send_data(stream, data)  # and no end: the stream stays open
        self._socket.sendall(self._http.data_to_send())
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(HANG_SECONDS)

    def _run(self) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            while data := self._socket.recv(65536):
                for event in self._http.receive_data(data):
                    assert not isinstance(event, h2.events.DataReceived) or not event.data
                self._socket.sendall(self._http.data_to_send())


@contextlib.contextmanager
def stalled_readers(address: str) -> Iterator[None]:
    """Clients of both kinds, at the same time: what one of them costs, they cost together."""
    with unread_calls(address, UNREAD_CALLS), closed_windows(address, CLOSED_WINDOWS):
        yield


# ---- the others


def throughput(server: Server) -> float:
    """Steps of streams that are read, for each second of the engines' CPU time.

    Other programs on the host hardly change that time. A slot that the streams do not get does, because a step of fewer
    streams takes nearly as long.
    """

    def speak(_: int) -> int:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(server.address, options) as channel:
            stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
            chunks = list(stub.Generate(iter(request(OTHERS_SEGMENTS)), timeout=HANG_SECONDS))
        return chunks[-1].summary.total_samples

    before = cpu_of_engines(server)
    with ThreadPoolExecutor(OTHERS) as threads:
        samples = list(threads.map(speak, range(OTHERS)))
    assert len(set(samples)) == 1 and samples[0] > 0
    return OTHERS * OTHERS_SEGMENTS * SEGMENT_STEPS / (cpu_of_engines(server) - before)


def cpu_of_engines(server: Server) -> float:
    engines = [one for one in psutil.Process(server.process.pid).children() if "engine" in one.cmdline()[0]]
    assert engines
    return sum(sum(one.cpu_times()[:2]) for one in engines)


def wait_until_idle(server: Server) -> None:
    """Wait until the engines make no more steps: all streams are at their limits.

    An engine that still makes steps uses more CPU time than that beside many other programs, too.
    """

    def idle() -> bool:
        before = cpu_of_engines(server)
        time.sleep(QUIET_SECONDS)
        return cpu_of_engines(server) - before < IDLE_SHARE * QUIET_SECONDS

    wait_until(idle)


def test_stalled_readers_do_not_lower_the_throughput_of_others(server):
    """Compares the best of alternating runs, or the median: both are lower if stalled readers cost something.

    The best depends on how engines happen to share the streams, and the median on other programs.
    """
    alone: list[float] = []
    beside: list[float] = []
    ratio = 0.0
    while len(alone) < LEAST_PAIRS or (ratio < LEAST and len(alone) < MOST_PAIRS):
        alone.append(throughput(server))
        with stalled_readers(server.address):
            wait_until_idle(server)
            beside.append(throughput(server))
        wait_until_idle(server)
        ratio = max(max(beside) / max(alone), median(beside) / median(alone))
    print(f"{max(alone):.0f} steps for a second of CPU alone, {ratio:.2f} beside, {len(alone)} pairs")
    assert ratio >= LEAST
