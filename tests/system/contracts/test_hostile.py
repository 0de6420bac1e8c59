"""Hostile clients of each contract cost nobody else: a stream of Generate beside them speaks as it does alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from support.clients.contract_calls import Stub
from support.servers.running import Server, serving

from voxcpm_client import AsyncClient
from voxcpm_grpc.settings.contracts import ContractSettings
from voxcpm_server.contracts.google import cloud_tts_pb2 as google
from voxcpm_server.contracts.known import contracts
from voxcpm_server.contracts.localai import backend_pb2 as localai
from voxcpm_server.contracts.riva import riva_tts_pb2 as riva

TEXT = "Hello there."
LONG = "This client never reads what it asked for. " * 100
CALLERS = 3
UNREAD = 3  # streams of each
ROUNDING = 32  # of 16-bit samples, by which a full batch may differ


@dataclass(frozen=True)
class Attack:
    """Calls of a contract: a whole text, and what is given to the method that streams."""

    service: Any
    whole: str
    streamed: str
    text: Any
    stream: Any

    @property
    def paths(self) -> list[str]:
        return [f"/{self.service.full_name}/{method.name}" for method in self.service.methods]


def attack(name: str) -> Attack:
    [contract] = contracts(ContractSettings.model_validate({"enabled": (name,)}))
    service = contract.descriptor
    match name:
        case "google":
            config = google.StreamingSynthesizeRequest(streaming_config=google.StreamingSynthesizeConfig())
            piece = google.StreamingSynthesizeRequest(input=google.StreamingSynthesisInput(text=LONG))
            whole = google.SynthesizeSpeechRequest(
                input=google.SynthesisInput(text=LONG), audio_config=google.AudioConfig(audio_encoding="LINEAR16")
            )
            return Attack(service, "SynthesizeSpeech", "StreamingSynthesize", whole, [config, piece])
        case "localai":
            message = localai.TTSRequest(text=LONG, dst="/etc/passwd")
            return Attack(service, "TTS", "TTSStream", message, message)
        case _:
            message = riva.SynthesizeSpeechRequest(text=LONG)
            return Attack(service, "Synthesize", "SynthesizeOnline", message, [message])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    flags = ("--contracts.enabled", "google,localai,riva", "--engine.prefix-caching", "false")
    with serving(tmp_path_factory.mktemp("voices"), *flags) as server:
        yield server
        assert not server.fault()


async def one_caller(address: str, attack: Attack, over: asyncio.Event) -> None:
    """Leave streams unread, cancel a call in the middle, and send what is no message, until it is over.

    A cancellation alone might not end it: grpc.aio loses one that arrives together with the status of a call.
    """
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = Stub(channel, attack.service)
        unread = [getattr(stub, attack.streamed)(attack.stream) for _ in range(UNREAD)]
        while not over.is_set():
            whole = getattr(stub, attack.whole)(attack.text)
            for path in attack.paths:
                call = channel.stream_stream(path)(iter([b"\xff" * 100]))
                with contextlib.suppress(grpc.aio.AioRpcError):
                    assert not [reply async for reply in call]
                assert await call.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED)
            whole.cancel()
            assert len(unread) == UNREAD  # they stay open


@contextlib.asynccontextmanager
async def attacked(address: str, attack: Attack) -> AsyncIterator[None]:
    over = asyncio.Event()
    callers = [asyncio.ensure_future(one_caller(address, attack, over)) for _ in range(CALLERS)]
    try:
        yield
        assert not [caller for caller in callers if caller.done()]
    finally:
        over.set()
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


@pytest.mark.parametrize("name", ["google", "localai", "riva"])
async def test_hostile_callers_change_nothing_for_others(server, name):
    async with AsyncClient(server.address) as client:
        alone = await client.say(TEXT, seed=1)
        async with attacked(server.address, attack(name)):
            for _ in range(2):
                beside = await client.say(TEXT, seed=1)
                assert len(beside.samples) == len(alone.samples)
                np.testing.assert_allclose(beside.samples.astype(int), alone.samples, atol=ROUNDING)
        after = await client.say(TEXT, seed=1)
        assert len(after.samples) == len(alone.samples)
    assert not server.fault()
