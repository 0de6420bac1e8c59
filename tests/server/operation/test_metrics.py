"""The metrics of a server, compared with what its clients measured."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.doubles.fake_engine import MakeFake
from support.doubles.pools import Launcher, pool_with
from support.servers.ports import free_port
from support.servers.waiting import until

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.settings.operation import MetricsSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.app import running_server
from voxcpm_server.operation.merged_metrics import metrics_page
from voxcpm_server.operation.metrics import Metrics

Sample = tuple[str, frozenset[tuple[str, str]]]


def scraped(address: str) -> dict[Sample, float]:
    """All samples of a page, by name and labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    assert all(family.documentation for family in families)
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def value(samples: dict[Sample, float], name: str, **labels: str) -> float:
    return samples.get((f"voxcpm_{name}", frozenset(labels.items())), 0.0)


@pytest.fixture
def metrics() -> Iterator[tuple[Metrics, str]]:
    made = Metrics()
    with metrics_page(made.registry, "127.0.0.1:0") as address:
        yield made, address


async def measured(served: Any, text: str) -> tuple[float, float]:
    """Speak a text. Returns the seconds to the first audio, and the seconds of audio."""
    began, first, samples, rate = time.monotonic(), 0.0, 0, 0
    async for chunk in served.stub.Generate(iter([pb.GenerateRequest(text=text)])):
        rate = rate or chunk.header.format.sample_rate_hz
        if chunk.audio and not first:
            first = time.monotonic() - began
        samples += chunk.sample_count
    return first, samples / rate


async def test_a_known_load_is_counted_as_its_clients_measured_it(serve_front, fake, metrics):
    counted, address = metrics
    pool = fake(step_seconds=0.01)
    texts = [f"Sentence number {number} is spoken." for number in range(8)]
    async with serve_front(pool, metrics=counted) as served:
        began = time.monotonic()
        heard = [await measured(served, text) for text in texts]
        with pytest.raises(grpc.aio.AioRpcError):
            await served.generate("...")
        with pytest.raises(grpc.aio.AioRpcError):
            await served.stub.GetVoice(pb.GetVoiceRequest(id="nobody"))
    elapsed = time.monotonic() - began
    samples = scraped(address)
    assert value(samples, "rpcs_total", method="Generate", code="OK") == len(texts)
    assert value(samples, "rpcs_total", method="Generate", code="INVALID_ARGUMENT") == 1
    assert value(samples, "rpcs_total", method="GetVoice", code="NOT_FOUND") == 1
    assert value(samples, "characters_total") == sum(map(len, texts)) + len("...")
    audio = sum(seconds for _, seconds in heard)
    assert value(samples, "audio_seconds_total", method="Generate") == pytest.approx(audio, rel=1e-3)
    assert value(samples, "time_to_first_audio_seconds_count") == len(texts)
    first = sum(seconds for seconds, _ in heard)
    assert 0 < value(samples, "first_audio_seconds_sum") <= value(samples, "time_to_first_audio_seconds_sum") < first
    assert value(samples, "first_audible_seconds_count") == len(texts)
    assert value(samples, "first_audio_seconds_sum") <= value(samples, "first_audible_seconds_sum")
    assert 0 < value(samples, "rpc_seconds_sum", method="Generate") < elapsed, "one followed the other"
    assert value(samples, "streams_without_underrun_total") + value(samples, "underruns_total") >= len(texts)


async def test_late_audio_is_an_underrun(serve_front, fake, metrics):
    counted, address = metrics
    pool = fake(hold_after=3)
    async with serve_front(pool, metrics=counted) as served:
        call = served.stub.Generate(iter([pb.GenerateRequest(text="This takes its time.")]))
        while not (await call.read()).audio:
            pass
        await until(lambda: pool.steps >= 3)
        time.sleep(0.8)  # noqa: ASYNC251 - longer than the audio so far
        pool.release()
        while await call.read():  # to the status, which follows what the server counts
            pass
    samples = scraped(address)
    assert value(samples, "underruns_total") >= 1 and value(samples, "underrun_seconds_total") > 0
    assert value(samples, "streams_without_underrun_total") == 0


async def test_engines_report_their_statistics(tmp_path):
    settings = Settings(
        listen="127.0.0.1:0",
        voices=VoiceSettings(url=str(tmp_path)),
        metrics=MetricsSettings(listen=f"127.0.0.1:{free_port()}"),
    )
    pool = pool_with(Launcher([MakeFake(slots=3)], "engine 0"))
    async with running_server(settings, pool=pool) as server, grpc.aio.insecure_channel(server.address) as channel:
        stub: Any = tts_pb2_grpc.VoxCPMServiceStub(channel)
        turn = pb.TurnConfig(sampling=pb.Sampling(max_steps=20))
        messages = [pb.GenerateRequest(config=pb.GenerateConfig(turn=turn)), pb.GenerateRequest(text="Hello there.")]
        async for _ in stub.Generate(iter(messages)):
            pass
        address = settings.metrics.listen or ""
        await until(lambda: value(scraped(address), "engine_steps_total", engine="engine 0") > 0)
        samples = scraped(address)
        assert value(samples, "engine_up", engine="engine 0") == 1
        assert value(samples, "engine_step_seconds_total", engine="engine 0") > 0
        assert value(samples, "engine_restarts_total", engine="engine 0") == 0
        assert value(samples, "open_streams") == 0
        assert any(name == "voxcpm_model_info" and ("name", "fake") in labels for name, labels in samples)
        assert ("process_resident_memory_bytes", frozenset()) in samples


def test_a_port_that_is_taken_is_an_error(tmp_path: Path):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        listen = f"127.0.0.1:{holder.getsockname()[1]}"
        with (
            pytest.raises(StartupError, match=r"cannot listen on .*: the port is taken"),
            metrics_page(Metrics().registry, listen),
        ):
            pass
