"""The engines of several models: health, metrics and statistics of each, and the loss of one."""

from __future__ import annotations

import urllib.request
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from prometheus_client.parser import text_string_to_metric_families
from support.clients.grpc_types import health_stub, message_of
from support.doubles.fake_engine import MakeFake
from support.doubles.pools import Launcher, patient, pool_with
from support.servers.operated import free_port
from support.servers.waiting import until

from voxcpm_client import AsyncClient
from voxcpm_grpc.settings.operation import AdminSettings, MetricsSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.app import running_server

SERVICE = "voxcpm_grpc.v1.VoxCPMService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def scraped(address: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """All samples of a page, by name and labels."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as page:
        families = list(text_string_to_metric_families(page.read().decode()))
    return {(one.name, frozenset(one.labels.items())): one.value for each in families for one in each.samples}


async def test_each_model_has_health_metrics_and_statistics_and_the_loss_of_one_leaves_the_other(tmp_path):
    metrics, admin = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    settings = Settings(
        model="small=demo;large=demo",
        listen="127.0.0.1:0",
        voices=VoiceSettings(url=str(tmp_path)),
        metrics=MetricsSettings(listen=metrics),
        admin=AdminSettings(listen=admin),
        drain_seconds=0.0,
    )
    small = Launcher([MakeFake(name="small", fingerprint="a" * 32)], name="engine small@cpu:0")
    large = Launcher([MakeFake(name="large", fingerprint="b" * 32)], name="engine large@cpu:0", restarts=False)
    pools = [pool_with(small), pool_with(large, settings=patient(restart_limit=1, restart_seconds=0.01))]
    async with (
        running_server(settings, pools=pools) as running,
        grpc.aio.insecure_channel(running.address) as channel,
        AsyncClient(admin) as operator,
        AsyncClient(running.address, retry_seconds=0.0) as client,
    ):
        stub: Any = tts_pb2_grpc.VoxCPMServiceStub(channel)
        health = health_stub(channel)

        async def status(service: str) -> int:
            return (await health.Check(health_pb2.HealthCheckRequest(service=service))).status

        async def speak(model: str) -> None:
            turn = pb.TurnConfig(sampling=pb.Sampling(max_steps=3))
            config = pb.GenerateRequest(config=pb.GenerateConfig(model=model, turn=turn))
            async for _ in stub.Generate(iter([config, pb.GenerateRequest(text="Hello there.")])):
                pass

        for name in ("", SERVICE, f"{SERVICE}/small", f"{SERVICE}/large"):
            assert await status(name) == SERVING
        await speak("large")
        samples = scraped(metrics)

        def value(name: str, **labels: str) -> float:
            return samples.get((f"voxcpm_{name}", frozenset(labels.items())), 0.0)

        assert value("model_rpcs_total", model="large", code="OK") == 1
        assert value("model_audio_seconds_total", model="large") > 0
        assert value("model_first_audio_seconds_count", model="large") == 1
        assert value("model_rpcs_total", model="small", code="OK") == 0
        assert value("model_loras", model="small") == value("model_loras", model="large") == 0
        assert value("model_engines_ready", model="small") == value("model_engines_ready", model="large") == 1
        assert value("engine_info", engine="engine large@cpu:0", model="large") == 1
        assert value("rpcs_total", method="Generate", code="OK") == 1  # as without several models
        assert value("engine_up", engine="engine large@cpu:0") == 1
        assert {labels for name, labels in samples if name == "voxcpm_model_info"} == {
            frozenset({"name": name, "architecture": "fake", "device": "cpu", "dtype": "float32"}.items())
            for name in ("small", "large")
        }
        stats = await operator.server_stats()
        assert (stats.model, stats.models) == ("small", ("small", "large"))
        assert {engine.name: engine.model for engine in stats.engines} == {
            "engine small@cpu:0": "small",
            "engine large@cpu:0": "large",
        }
        large.kill()
        await until(lambda: not pools[1].healthy)
        await running.ended()  # its only engine is given up
        assert await status(f"{SERVICE}/large") == await status("") == await status(SERVICE) == NOT_SERVING
        assert await status(f"{SERVICE}/small") == await status("liveness") == SERVING
        await speak("small")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await speak("large")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert message_of(caught.value)
        assert [model.serving for model in await client.list_models()] == [True, False]
