"""Several front processes that share engines, voices and a port."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from grpc_health.v1 import health_pb2
from support.clients.grpc_types import health_stub
from support.engines.checkpoints import TINY
from support.servers import uploads
from support.servers.running import Server, serving
from support.servers.streams import PausedStream, texts
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, wait_until

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.pool.engines.host import Host
from voxcpm_grpc.settings.engine import SupervisionSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.fronts import reserved

FRONTS = ("front 0", "front 1")
ENGINE_SECONDS = 120.0  # like HANG_SECONDS, for waits in which an engine loads
LOST_SECONDS = 20.0  # after which a call counts as lost


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("voices")
    flags = ("--devices", "cpu:2", "--fronts", "2", "--supervision.restart-seconds", "0.5")
    flags += ("--drain-seconds", f"{NEVER_SECONDS:g}")
    with serving(folder, *flags, model=with_preset(tmp_path_factory.mktemp("models"))) as server:
        yield server


def with_preset(folder: Path) -> Path:
    """A model with a preset."""
    model = shutil.copytree(TINY, folder / "model")
    presets = model / "presets"
    presets.mkdir()
    (presets / "anna.wav").write_bytes(uploads.recording())
    (presets / "presets.json").write_text('[{"name": "anna", "kind": "reference", "recording": "anna.wav"}]')
    return model


@contextlib.contextmanager
def connection(server: Server) -> Iterator[tts_pb2_grpc.VoxCPMServiceStub]:
    """A new connection; the system assigns it to one of the fronts.

    Without gRPC's own retries, in which a stream may hang if its connection ends as the last one of its server.
    """
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
    with grpc.insecure_channel(server.address, options) as channel:
        yield tts_pb2_grpc.VoxCPMServiceStub(channel)


def processes(server: Server, title: str) -> list[psutil.Process]:
    """The processes whose title starts with `title`."""
    found = []
    for child in psutil.Process(server.process.pid).children():
        with contextlib.suppress(psutil.Error):
            if child.cmdline()[0].startswith(f"voxcpm-grpc {title}"):
                found.append(child)
    return found


def replaced(server: Server, title: str, lost: psutil.Process) -> bool:
    """True if another process has replaced a lost one."""
    return [process.pid for process in processes(server, title)] not in ([], [lost.pid])


def answered(server: Server, method: str, start: int = 0) -> set[str]:
    """The fronts that have answered a method, by the log from position `start` on."""
    return set(re.findall(rf"INFO (front \d) \S+ rpc id=\S+ method={method} code=OK", server.log[start:]))


def both_answer(server: Server, call: Callable[[tts_pb2_grpc.VoxCPMServiceStub], object], method: str) -> None:
    """Call until both fronts have answered; one that was restarted does so when it listens."""
    start = len(server.log)

    def answer() -> bool:
        with connection(server) as stub:
            call(stub)
        return answered(server, method, start) == set(FRONTS)

    wait_until(answer)


def speak(server: Server, words: str = "Hello there.") -> int:
    with connection(server) as stub:
        return list(stub.Generate(texts(words), timeout=HANG_SECONDS))[-1].summary.total_samples


def test_fronts_share_the_port_and_the_engines(server):
    assert len(processes(server, "front")) == len(processes(server, "engine")) == 2
    assert not processes(server, "standby"), "a CPU has none by default"
    with ThreadPoolExecutor(12) as threads:
        spoken = list(threads.map(lambda _: speak(server), range(12)))
    assert min(spoken) > 0
    both_answer(server, lambda stub: stub.GetModelInfo(pb.GetModelInfoRequest()), "GetModelInfo")


def test_fronts_share_their_voices(server):
    noise = np.random.default_rng(0).uniform(-0.3, 0.3, 8000).astype(np.float32)
    recording = wav_bytes(noise, 16000)
    upload = [
        pb.AddReferenceRequest(config=pb.AddReferenceConfig()),
        pb.AddReferenceRequest(audio=pb.AudioPart(data=recording)),
        pb.AddReferenceRequest(
            commit=pb.UploadCommit(digests=[pb.UploadDigest(total_bytes=len(recording))]),
        ),
    ]
    with connection(server) as stub:
        handle = next(chunk.handle for chunk in stub.AddReference(iter(upload)) if chunk.HasField("handle"))
    both_answer(server, lambda stub: stub.GetVoice(pb.GetVoiceRequest(id=handle.id)), "GetVoice")


def test_every_front_has_the_presets_of_the_model(server):
    config = pb.GenerateRequest(config=pb.GenerateConfig(conditioning=pb.Conditioning(preset="anna")))
    text = pb.GenerateRequest(text="Hello.")
    both_answer(server, lambda stub: list(stub.Generate(iter([config, text]), timeout=HANG_SECONDS)), "Generate")


def test_a_lost_front_fails_only_its_own_streams_and_is_restarted(server):
    """There are streams through both fronts on both engines. Those of the dead front free their slots."""
    words = "This is a long sentence, so speaking it takes some time. " * 2
    with contextlib.ExitStack() as stack:
        calls = [
            stack.enter_context(connection(server)).Generate(texts(words), timeout=ENGINE_SECONDS) for _ in range(8)
        ]
        for call in calls:
            next(call)
        [victim] = processes(server, "front 0")
        victim.kill()
        with ThreadPoolExecutor(len(calls)) as threads:
            outcomes = list(threads.map(outcome, calls))
    assert set(outcomes) <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE}
    wait_until(lambda: replaced(server, "front 0", victim), ENGINE_SECONDS)
    both_answer(server, lambda stub: stub.GetModelInfo(pb.GetModelInfoRequest()), "GetModelInfo")
    both_answer(server, lambda stub: list(stub.Generate(texts("Hello."), timeout=HANG_SECONDS)), "Generate")


def outcome(call) -> grpc.StatusCode:
    with contextlib.suppress(grpc.RpcError):
        for _ in call:
            pass
    return call.code()


def test_a_lost_engine_is_restarted_for_all_fronts(server):
    [victim] = processes(server, "engine cpu:1")
    victim.kill()
    with ThreadPoolExecutor(8) as threads:
        assert min(threads.map(lambda _: speak(server), range(8))) > 0, "no audio was sent, so all are retried"
    with grpc.insecure_channel(server.address) as channel:
        health = health_stub(channel)
        assert health.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING
    wait_until(lambda: replaced(server, "engine cpu:1", victim), ENGINE_SECONDS)
    for engine in processes(server, "engine cpu:0"):
        engine.kill()
    wait_until(lambda: {outcome_of(server) for _ in range(8)} == {grpc.StatusCode.OK}, ENGINE_SECONDS)


def outcome_of(server: Server, timeout: float = HANG_SECONDS) -> grpc.StatusCode:
    with connection(server) as stub:
        return outcome(stub.Generate(texts("Hello."), timeout=timeout))


def test_termination_lets_the_streams_of_all_fronts_finish(server):
    """The last test of this server."""
    family = psutil.Process(server.process.pid).children(recursive=True)
    stream = PausedStream()
    with contextlib.ExitStack() as stack:
        calls = [stack.enter_context(connection(server)).Generate(stream.messages()) for _ in range(8)]
        for call in calls:
            next(call)
        server.terminate()
        wait_until(lambda: drains(server))
        stream.resume()
        for call in calls:
            assert list(call)[-1].summary.segments == 2
    assert server.process.wait(HANG_SECONDS) == 0
    _, alive = psutil.wait_procs(family, HANG_SECONDS)
    assert not alive


def drains(server: Server) -> bool:
    """True if the server refuses a new call. One that arrives while it closes its port may get no answer."""
    return outcome_of(server, LOST_SECONDS) is grpc.StatusCode.UNAVAILABLE


def test_a_taken_port_is_refused_even_if_its_owner_shares_it():
    with socket.socket() as owner:
        owner.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        owner.bind(("127.0.0.1", 0))
        owner.listen()
        port = owner.getsockname()[1]
        for shared in (True, False):
            refused = pytest.raises(StartupError, match=f"cannot listen on 127.0.0.1:{port}")
            with refused, reserved(f"127.0.0.1:{port}", 2, shared=shared):
                pass


def test_ports_are_the_same_or_consecutive():
    with reserved("127.0.0.1:0", 3, shared=True) as addresses:
        assert len(addresses) == 3
        assert len(set(addresses)) == 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    with reserved(f"localhost:{free}", 1, shared=False) as [address]:
        assert address == f"localhost:{free}"
    with reserved("127.0.0.1:0", 3, shared=False) as addresses:
        assert len(set(addresses)) == 3
    first = free_run(3)
    with reserved(f"127.0.0.1:{first}", 3, shared=False) as addresses:
        assert addresses == [f"127.0.0.1:{first + number}" for number in range(3)]


def free_run(count: int) -> int:
    """The first of that many free ports in a row."""
    for first in range(20_000, 60_000, 100):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for number in range(count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", first + number))
            return first
    raise AssertionError("no free ports")


@pytest.mark.parametrize(
    ("listen", "shared", "words"),
    [
        ("unix:/tmp/voxcpm.sock", True, "name a host and a port"),
        ("127.0.0.1:65535", False, "2 fronts need the ports from 65535 on"),
        ("203.0.113.1:50051", True, "cannot listen on 203.0.113.1:50051"),
    ],
)
def test_addresses_that_fronts_cannot_listen_on_are_refused(listen, shared, words):
    with pytest.raises(StartupError, match=words), reserved(listen, 2, shared=shared):
        pass


async def test_a_temporary_folder_with_a_path_too_long_for_sockets_is_refused(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(StartupError, match="set TMPDIR to a shorter one"):
        Host([], SupervisionSettings())
    assert not list(deep.iterdir())


def test_fronts_refuse_a_store_in_memory():
    refused = pytest.raises(AssertionError, match="do not see each other's voices")
    with refused, serving("memory://voices", "--fronts", "2"):
        pass
