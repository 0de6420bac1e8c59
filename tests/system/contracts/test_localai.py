"""A server that is started as LocalAI starts a backend, by the script of docs/from-localai.md."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.clients.contract_calls import Stub
from support.clients.ears import SENTENCE, resampled, samples
from support.servers.ports import free_address
from support.servers.waiting import HANG_SECONDS

from voxcpm_server.contracts.localai import backend_pb2 as localai

PAGE = Path(__file__).parents[3] / "docs/from-localai.md"
FOLDER = "/tmp/generated"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("generated")


@pytest.fixture(scope="module")
def address(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that the script has started; it may not be ready."""
    backend = tmp_path_factory.mktemp("backend")
    [script] = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert FOLDER in script
    program(backend / "run.sh", script.replace(FOLDER, str(folder)))
    # The environment of the suite has the package, and not its command.
    program(backend / "voxcpm-grpc", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m voxcpm_client "$@"\n')
    environment = os.environ | {
        "PATH": f"{backend}{os.pathsep}{os.environ['PATH']}",
        "VOXCPM_VOICES__URL": str(folder.parent / "voices"),
        "VOXCPM_DRAIN_DELAY_SECONDS": "0",
    }
    address = free_address()
    process = subprocess.Popen([backend / "run.sh", "--addr", address], env=environment, cwd=backend)
    try:
        yield address
    finally:
        process.terminate()
        assert process.wait(HANG_SECONDS) == 0


def program(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    path.chmod(0o700)


@pytest.fixture
async def stub(address: str) -> AsyncIterator[Any]:
    """Waits as LocalAI does until the server is healthy."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = Stub(channel, localai.DESCRIPTOR.services_by_name["Backend"])
        async with asyncio.timeout(HANG_SECONDS):
            while not await healthy(stub):  # noqa: ASYNC110, as LocalAI asks
                await asyncio.sleep(0.2)
        yield stub


async def healthy(stub: Any) -> bool:
    try:
        return (await stub.Health(localai.HealthMessage())).message == b"OK"
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return False


async def test_a_model_is_loaded_and_speaks_into_a_file(stub, folder, understood):
    assert (await stub.LoadModel(localai.ModelOptions(Model="demo"))).success
    path = folder / "audio/tts.wav"
    path.parent.mkdir()
    request = localai.TTSRequest(text=SENTENCE, voice="miles", language="", ModelIdentity="demo", dst=str(path))
    result = await stub.TTS(request)
    assert result.success, result.message
    understood(samples(path.read_bytes()))
    again = await stub.TTS(request)
    assert not again.success and "exists" in again.message


async def test_a_stream_is_understood(stub, understood):
    request = localai.TTSRequest(text=SENTENCE, voice="miles")
    first, *others = [reply async for reply in stub.TTSStream(request)]
    assert len(others) > 3
    understood(resampled(b"".join(reply.audio for reply in others), json.loads(first.message)["sample_rate"]))
