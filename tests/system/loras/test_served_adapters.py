"""Adapters of the tiny model on a server with two models, whose engines two fronts share."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.engines import goldens
from support.engines.checkpoints import TINY
from support.servers.running import ADMIN, Server, serving
from support.servers.waiting import wait_until

from voxcpm_grpc import lora_files
from voxcpm_grpc.v1 import admin_pb2, admin_pb2_grpc, tts_pb2_grpc
from voxcpm_grpc.v1 import tts_pb2 as pb

ATTENTION, LAYERS = (goldens.GOLDENS / name / "adapter" for name in ("lora_attention", "lora_layers"))


class Front:
    """The two services of a front."""

    def __init__(self, channel: grpc.Channel, admin_channel: grpc.Channel) -> None:
        self.stub: Any = tts_pb2_grpc.VoxCPMServiceStub(channel)
        self.admin: Any = admin_pb2_grpc.VoxCPMAdminServiceStub(admin_channel)

    def register(self, name: str, source: Path, model: str = "") -> admin_pb2.LoraInfo:
        request = admin_pb2.RegisterLoraRequest(name=name, source=str(source), model=model)
        return self.admin.RegisterLora(request).lora

    def unregister(self, name: str, model: str = "") -> None:
        self.admin.UnregisterLora(admin_pb2.UnregisterLoraRequest(name=name, model=model))

    def names(self, model: str = "") -> list[str]:
        return list(self.stub.GetModelInfo(pb.GetModelInfoRequest(model=model)).loras)

    def audio(self, lora: str = "", model: str = "") -> bytes:
        sampling = pb.Sampling(seed=3, inference_timesteps=4, min_steps=5, max_steps=6)
        config = pb.GenerateConfig(turn=pb.TurnConfig(sampling=sampling, lora=lora), model=model)
        messages = [pb.GenerateRequest(config=config), pb.GenerateRequest(text="Hi.")]
        return b"".join(reply.audio for reply in self.stub.Generate(iter(messages)))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    for path in (ATTENTION, LAYERS):
        shutil.copytree(path, folder / path.parent.name)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, sources: Path) -> Iterator[Server]:
    flags = [
        *("--model", f"small={TINY}@cpu", "--fronts", "2", "--front-ports", "consecutive"),
        *("--lora", f"fixed={ATTENTION}", "--admin.listen", "127.0.0.1:0", "--admin.lora-sources", str(sources)),
    ]
    with serving(tmp_path_factory.mktemp("voices"), *flags, model=f"large={TINY}@cpu") as server:
        yield server


@pytest.fixture
def fronts(server: Server) -> Iterator[list[Front]]:
    # The two lists may have different orders.
    ports = zip(server.address.split(","), re.findall(ADMIN, server.log), strict=True)
    channels = [[grpc.insecure_channel(address) for address in front] for front in ports]
    yield [Front(*pair) for pair in channels]
    for pair in channels:
        for channel in pair:
            channel.close()


def test_adapters_of_all_fronts_and_of_each_model(fronts, sources):
    one, two = fronts
    fixed, alone = one.audio("fixed"), one.audio()
    assert fixed != alone
    info = one.register("anna", sources / "lora_attention", "small")
    assert (info.model, info.engines) == ("small", 1)
    for front in fronts:
        wait_until(lambda front=front: front.names("small") == ["anna"])
        assert front.names() == ["fixed"]
        assert front.audio("anna", "small") == fixed
        assert front.audio("", "small") == alone
    with pytest.raises(grpc.RpcError, match="there is no LoRA adapter 'anna'; the server has fixed"):
        two.audio("anna")
    two.unregister("anna", "small")
    wait_until(lambda: not one.names("small"))
    with pytest.raises(grpc.RpcError, match="there is no LoRA adapter 'anna'; the server has none"):
        one.audio("anna", "small")


def test_an_adapter_of_the_settings_can_be_unregistered_and_replaced(fronts, sources):
    one, two = fronts
    fixed = one.audio("fixed")
    one.unregister("fixed")
    wait_until(lambda: not two.names())
    one.register("fixed", sources / "lora_attention")
    wait_until(lambda: two.names() == ["fixed"])
    assert two.audio("fixed") == fixed


def test_an_adapter_that_does_not_fit_is_refused_with_the_names_of_what_does_not(fronts, sources):
    one, two = fronts
    with pytest.raises(grpc.RpcError) as caught:
        one.register("bert", sources / "lora_layers")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    message = str(caught.value.details())
    assert message.startswith("the LoRA adapter 'bert': it does not fit this model: ")
    assert "mlp.gate_proj" in message
    assert one.names() == two.names() == ["fixed"]


def test_a_legacy_pickle_is_refused_with_the_remedy(fronts, sources):
    (sources / "pickle").mkdir()
    shutil.copy(ATTENTION / lora_files.CONFIG, sources / "pickle")
    (sources / "pickle" / lora_files.LEGACY).touch()
    with pytest.raises(grpc.RpcError, match=r"save its tensors with safetensors as lora_weights\.safetensors"):
        fronts[0].register("bert", sources / "pickle")
