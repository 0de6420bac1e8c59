"""Two models with real engines behind one address, with one server process and with two."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from grpc_health.v1 import health_pb2
from safetensors.numpy import load_file, save_file
from support.clients.grpc_types import health_stub
from support.engines.checkpoints import TINY
from support.servers.running import Server, serving
from support.servers.uploads import recording
from support.servers.waiting import wait_until

from voxcpm_client import Client, FailedPrecondition, NotFound

SERVICE = "voxcpm_grpc.v1.VoxCPMService"
ENGINE_SECONDS = 120.0
SPEECH = {"seed": 7, "max_steps": 6, "min_steps": 4}


def other_weights(folder: Path) -> Path:
    """The tiny checkpoint with other weights, and so with another fingerprint."""
    model = shutil.copytree(TINY, folder / "other")
    file = model / "model.safetensors"
    weights = load_file(file)
    name = next(name for name, weight in weights.items() if weight.dtype == np.float32 and weight.ndim == 2)
    weights[name] = weights[name] * np.float32(1.01)
    save_file(weights, file, metadata={"format": "pt"})
    return model


@pytest.fixture(scope="module", params=[pytest.param("1", marks=pytest.mark.nightly), "2"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("served")
    other = other_weights(folder)
    flags = ("--model", f"other={other}@cpu", "--fronts", request.param, "--supervision.restart-seconds", "0.5")
    with serving(folder / "voices", *flags, model=f"tiny={TINY}@cpu") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.address) as client:
        yield client


def engines(server: Server) -> list[str]:
    """The titles of the engines' processes."""
    found: list[str] = []
    for child in psutil.Process(server.process.pid).children(recursive=True):
        try:
            found += re.findall(r"voxcpm-grpc engine (\S+)", " ".join(child.cmdline()))
        except psutil.Error:
            continue
    return sorted(found)


def test_each_model_speaks_with_its_own_engine(server, client):
    assert engines(server) == ["other@cpu:0", "tiny@cpu:0"]
    tiny, other = client.list_models()
    assert (tiny.name, tiny.is_default, tiny.serving, other.name, other.serving) == ("tiny", True, True, "other", True)
    assert tiny.model_fingerprint != other.model_fingerprint
    default, first, second = (
        client.say("Hello there.", **SPEECH, **m) for m in ({}, {"model": "tiny"}, {"model": "other"})
    )
    assert (default.header.model, first.header.model, second.header.model) == ("tiny", "tiny", "other")
    np.testing.assert_array_equal(default.samples, first.samples)
    assert first.samples.shape != second.samples.shape or not np.array_equal(first.samples, second.samples)
    with pytest.raises(NotFound, match=r"there is no model 'huge'; this server has tiny, other"):
        client.say("Hello.", model="huge")


def test_a_voice_belongs_to_a_model(client):
    voice = client.add_reference(recording(5), name="Ada", model="other")
    assert voice.model == "other"
    assert client.say("Hello.", voice="Ada", model="other", **SPEECH).header.voice == voice.id
    with pytest.raises(FailedPrecondition, match="was made for the model 'other' and this request is for 'tiny'"):
        client.say("Hello.", voice="Ada", **SPEECH)
    assert [found.id for found in client.voices(model="other")] == [voice.id]
    client.delete_voice(voice.id)


def test_a_model_whose_engine_is_lost_is_not_serving_and_comes_back(server, client):
    def status(name: str) -> int:
        with grpc.insecure_channel(server.address) as channel:
            return health_stub(channel).Check(health_pb2.HealthCheckRequest(service=name)).status

    serving_now = health_pb2.HealthCheckResponse.SERVING
    assert status("") == status(f"{SERVICE}/tiny") == status(f"{SERVICE}/other") == serving_now
    for child in psutil.Process(server.process.pid).children(recursive=True):
        if "engine other@cpu:0" in " ".join(child.cmdline()):
            child.kill()
    wait_until(lambda: status(f"{SERVICE}/other") != serving_now)
    assert client.say("Hello.", **SPEECH).samples.size  # the other model goes on
    wait_until(lambda: status("") == serving_now, ENGINE_SECONDS)
    assert client.say("Hello.", model="other", **SPEECH).samples.size
