"""A server as a process: its ready line, its end, and its errors at the start."""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from google.protobuf.duration_pb2 import Duration
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from support.clients.grpc_types import EOF, health_stub
from support.doubles.pools import patient
from support.engines.checkpoints import TINY
from support.engines.recorded_stats import RecordStats, recorded_stats
from support.servers.running import UNTIMED
from support.servers.streams import PausedStream, texts
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_grpc.audio import wav_bytes
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.request import Stats
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_grpc.worker.main import LoadEngine
from voxcpm_server.app import running_server

SERVE = (
    "import sys; from voxcpm_grpc.settings.sources import load; from voxcpm_server.main import serve; "
    "serve(load(sys.argv[1:]))"
)
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE = "voxcpm_grpc.v1.VoxCPMService"
LONGER_THAN_A_MOMENT = 0.2  # without a new call, for which a server that ends waits
LOST_SECONDS = 60.0  # deadline of calls that gRPC may lose


@dataclass
class Process:
    process: subprocess.Popen[str]
    line: str
    address: str
    channel: grpc.Channel

    @property
    def stub(self) -> tts_pb2_grpc.VoxCPMServiceStub:
        return tts_pb2_grpc.VoxCPMServiceStub(self.channel)


def start(voices: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SERVE, "--listen", "127.0.0.1:0"]
    command += ["--model", str(TINY), "--voices.url", str(voices), *UNTIMED, *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    drain = ("--drain-seconds", f"{NEVER_SECONDS:g}")
    running = start(tmp_path_factory.mktemp("voices"), "--decode-workers", "1", *drain)
    try:
        assert running.stdout is not None
        line = running.stdout.readline()
        found = re.match(r"listening on (127\.0\.0\.1:\d+) ", line)
        assert found, running.communicate(timeout=HANG_SECONDS)
        with grpc.insecure_channel(found[1]) as channel:
            yield Process(running, line, found[1], channel)
    finally:
        running.kill()
        running.communicate(timeout=HANG_SECONDS)


def test_the_ready_line_names_the_model_and_the_device(process):
    assert "model=tiny" in process.line
    assert "device=cpu" in process.line


def test_it_generates_speech(process):
    chunks = list(process.stub.Generate(texts("Hello there. ", "How are you?")))
    summary = chunks[-1].summary
    assert summary.segments == 2
    assert summary.total_samples == sum(c.sample_count for c in chunks) > 0
    assert chunks[0].header.model == "tiny"
    info = process.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert summary.total_samples == summary.generated_steps * info.samples_per_step
    assert (info.device, info.dtype, info.codec_dtype) == ("cpu", "float32", "float32")


def test_health_and_reflection(process):
    health = health_stub(process.channel)
    for name in ("", SERVICE):
        assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == SERVING
    for version in ("v1alpha", "v1"):
        method = process.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        listing, file = method(iter(requests))
        assert file.file_descriptor_response.file_descriptor_proto
        names = [service.name for service in listing.list_services_response.service]
        assert SERVICE in names
        for described in method(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in names):
            assert described.file_descriptor_response.file_descriptor_proto, described


def test_a_taken_port_is_one_line_and_an_error(process, tmp_path):
    other = start(tmp_path, "--listen", process.address)
    _, stderr = other.communicate(timeout=HANG_SECONDS)
    assert other.returncode == 1
    assert f"cannot listen on {process.address}" in stderr.strip().splitlines()[-1]


def test_termination_lets_open_streams_finish(process):
    """The last test of this process."""
    updates = health_stub(process.channel).Watch(health_pb2.HealthCheckRequest())
    assert next(updates).status == SERVING
    stream = PausedStream()
    speech = process.stub.Generate(stream.messages())
    next(speech)
    process.process.send_signal(signal.SIGTERM)
    assert next(updates).status == NOT_SERVING
    with pytest.raises(grpc.RpcError) as caught:
        while True:  # the server serves new calls until none has come for a moment
            process.stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=LOST_SECONDS)
            time.sleep(LONGER_THAN_A_MOMENT)
    # gRPC loses a call that arrives in the milliseconds in which its server stops: it cancels it, or leaves it to its
    # deadline (github.com/grpc/grpc/issues/41785).
    lost = grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED
    assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, *lost)
    assert list(updates) == []
    stream.resume()
    assert list(speech)[-1].summary.segments == 2
    assert process.process.wait(timeout=HANG_SECONDS) == 0


def test_a_missing_checkpoint_is_an_error_before_anything_starts(tmp_path):
    failed = start(tmp_path, "--model", str(tmp_path / "nowhere"))
    _, stderr = failed.communicate(timeout=HANG_SECONDS)
    assert failed.returncode == 1
    assert "nowhere" in stderr


def settings(tmp_path: Path, **fields) -> Settings:
    engine = EngineSettings(max_slots=4, device="cpu")
    return Settings(
        model=str(TINY),
        listen="127.0.0.1:0",
        engine=engine,
        supervision=patient(),
        voices=VoiceSettings(url=str(tmp_path / "voices")),
        decode_workers=1,
        drain_seconds=5,
        **fields,
    )


async def test_a_voice_store_that_cannot_be_opened_is_an_error(tmp_path):
    (tmp_path / "voices").write_text("a file")
    with pytest.raises(StartupError, match="voice store"):
        async with running_server(settings(tmp_path)):
            pass


async def test_a_port_is_checked_before_the_model_loads(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartupError, match="cannot listen"):
            async with running_server(settings(tmp_path).model_copy(update={"listen": listen}), directory=tmp_path):
                pass


async def generate(stub, *messages: pb.GenerateRequest) -> list[pb.AudioChunk]:
    return [chunk async for chunk in stub.Generate(iter(messages))]


def recording(seconds: float = 0.5) -> bytes:
    return wav_bytes(np.random.default_rng(0).uniform(-0.3, 0.3, int(16000 * seconds)).astype(np.float32), 16000)


async def test_streams_of_all_kinds_at_once_leave_nothing_behind(tmp_path):
    served = settings(tmp_path)
    engine = EngineProcess(RecordStats(LoadEngine(TINY, "tiny", served.engine), tmp_path))
    async with (
        running_server(
            served, pool=EnginePool(LocalEngines({"engine": lambda: engine}, served.supervision))
        ) as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        data = recording()
        messages = [
            pb.AddHifiRequest(
                config=pb.AddHifiConfig(
                    uploaded_prompt=pb.UploadedPrompt(transcript="Hello."),
                    same_as_prompt=pb.SameAsPrompt(),
                    preview=pb.Preview(mode=pb.PREVIEW_MODE_RECONSTRUCTION),
                )
            ),
            pb.AddHifiRequest(audio=pb.AudioPart(data=data)),
            pb.AddHifiRequest(commit=pb.UploadCommit(digests=[pb.UploadDigest(total_bytes=len(data))])),
        ]
        chunks = [chunk async for chunk in stub.AddHifi(iter(messages))]
        handle = chunks[0].handle
        patches = -(-len(data) // 2 // 2560)
        assert sum(c.sample_count for c in chunks) == chunks[-1].summary.total_samples >= 2 * (patches - 1) * 7680

        def request(seed: int, **fields) -> pb.GenerateRequest:
            turn = pb.TurnConfig(sampling=pb.Sampling(seed=seed, max_steps=6), style=fields.pop("style", ""))
            return pb.GenerateRequest(config=pb.GenerateConfig(turn=turn, **fields))

        text_message = pb.GenerateRequest(text="One is here. Two is here.")
        inline = pb.InlineReference(audio=pb.EncodedAudio(data=data))
        configs = [
            request(1),
            request(2, style="calm"),
            request(3, conditioning=pb.Conditioning(hifi_id=handle.id)),
            request(4, conditioning=pb.Conditioning(prompt_id=handle.prompt_id)),
            request(5, conditioning=pb.Conditioning(reference_id=handle.reference_id)),
            request(6, conditioning=pb.Conditioning(inline_reference=inline)),
            request(7, segmentation=pb.Segmentation(continuity=pb.CONTINUITY_MODE_INDEPENDENT)),
        ]
        alone = [await generate(stub, config, text_message) for config in configs]

        async def cancelled() -> None:
            call = stub.Generate()
            await call.write(text_message)
            await call.write(pb.GenerateRequest(flush=pb.Flush()))
            while not (await call.read()).sample_count:
                pass
            call.cancel()

        async def interrupted() -> None:
            flush, stop = pb.GenerateRequest(flush=pb.Flush()), pb.GenerateRequest(interrupt=pb.Interrupt(tag="x"))
            chunks = await generate(stub, text_message, flush, stop, text_message, stop)
            assert [c.interrupted.tag for c in chunks if c.HasField("interrupted")] == ["x", "x"]

        together = await asyncio.gather(
            *(generate(stub, config, text_message) for config in configs),
            cancelled(),
            interrupted(),
            cancelled(),
            interrupted(),
        )
        for before, after in zip(alone, together, strict=False):
            assert after is not None
            first, second = (np.frombuffer(b"".join(c.audio for c in chunks), "<i2") for chunks in (before, after))
            assert len(first) == len(second) == before[-1].summary.total_samples
            assert np.abs(first.astype(int) - second).max() <= 4  # of 32768
        await until(lambda: at_rest(recorded_stats(tmp_path, engine.pid)))
        assert recorded_stats(tmp_path, engine.pid).cancelled >= 2


def at_rest(stats: Stats) -> bool:
    return not (stats.slots_used or stats.pages_used or stats.waiting)


async def test_a_lost_engine_is_reported_to_callers_and_balancers_and_restarted(tmp_path, monkeypatch):
    async with (
        running_server(settings(tmp_path)) as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        health = health_stub(channel)
        updates = aiter(health.Watch(health_pb2.HealthCheckRequest(service=SERVICE)))
        assert (await anext(updates)).status == SERVING
        call = stub.Generate()
        await call.write(pb.GenerateRequest(text="This is a long sentence, so speaking it takes some time. " * 4))
        await call.write(pb.GenerateRequest(flush=pb.Flush()))
        while not (await call.read()).sample_count:
            pass
        may_start, start_engine = asyncio.Event(), EngineProcess.start

        async def start_when_allowed(handle):
            await may_start.wait()
            return await start_engine(handle)

        monkeypatch.setattr(EngineProcess, "start", start_when_allowed)
        (engine,) = [child for child in multiprocessing.active_children() if child.name.startswith("engine")]
        engine.kill()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await call.read() is not EOF:
                pass
        assert caught.value.code() is grpc.StatusCode.ABORTED
        impatient = pb.GenerateConfig(max_queue_time=Duration(nanos=1_000_000))
        with pytest.raises(grpc.aio.AioRpcError, match="no engine is ready, and the next one is expected in") as caught:
            await generate(stub, pb.GenerateRequest(config=impatient), pb.GenerateRequest(text="Hello."))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING
        assert (await health.Check(health_pb2.HealthCheckRequest(service="liveness"))).status == SERVING
        may_start.set()
        async with asyncio.timeout(HANG_SECONDS):
            assert [(await anext(updates)).status for _ in range(2)] == [NOT_SERVING, SERVING]
        assert (await generate(stub, pb.GenerateRequest(text="Hello.")))[-1].HasField("summary")


async def test_a_server_ends_when_no_engine_can_be_restarted(tmp_path):
    checkpoint = shutil.copytree(TINY, tmp_path / "model")
    flags = ("--model", str(checkpoint), "--supervision.restart-limit", "2", "--supervision.restart-seconds", "0.1")
    server = await asyncio.to_thread(start, tmp_path / "voices", "--decode-workers", "1", *flags)
    try:
        assert server.stdout is not None
        assert "listening" in await asyncio.to_thread(server.stdout.readline)
        shutil.rmtree(checkpoint)
        [engine] = [child for child in psutil.Process(server.pid).children() if "engine cpu:0" in child.cmdline()[0]]
        engine.kill()
        _, log = await asyncio.to_thread(server.communicate, timeout=200)
        assert server.returncode == 1
        assert "no engine is left" in log.strip().splitlines()[-1]
        assert " WARNING voxcpm_server.main supervision.restart_limit is deprecated, and the next version" in log
    finally:
        server.kill()
