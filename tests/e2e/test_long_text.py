"""Text of any length is spoken by a server that takes only a part of it at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import grpc
import pytest
from support.servers.running import serving
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient, Client, SpeechOptions
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

LIMIT = 5_000
BOOK = "".join(
    f"In chapter {number} the story goes on{' and on' * 20}, as stories do, until the number {number} is reached. "
    for number in range(50)
)
SHORT: SpeechOptions = {"max_steps": 1, "timesteps": 4, "continuity": "independent", "seed": 1}

pytestmark = pytest.mark.skipif("config.getoption('--target')", reason="needs a server with a small limit")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("voices"), "--limits.max-text-chars", str(LIMIT)) as server:
        yield server.address


def test_the_server_refuses_the_text_at_once(target):
    messages = [
        pb.GenerateRequest(config=pb.GenerateConfig()),
        *(pb.GenerateRequest(text=BOOK[at : at + 1000]) for at in range(0, len(BOOK), 1000)),
    ]
    with grpc.insecure_channel(target) as channel, pytest.raises(grpc.RpcError) as raised:
        list(tts_pb2_grpc.VoxCPMServiceStub(channel).Generate(iter(messages)))
    assert f"the limit is {LIMIT}" in (raised.value.details() or "")


async def test_the_clients_speak_it(target):
    assert len(BOOK) > 2 * LIMIT
    async with AsyncClient(target, timeout=HANG_SECONDS) as client:
        speech = await client.say(BOOK, **SHORT)
        assert speech.summary is not None and speech.summary.input_chars == len(BOOK)


def test_the_blocking_client_speaks_it_word_by_word(target):
    with Client(target, timeout=HANG_SECONDS) as client:
        speech = client.say((f"{word} " for word in BOOK.split()), **SHORT)
        assert speech.summary is not None and speech.summary.input_chars == len(BOOK)


def test_the_program_speaks_a_book_from_a_pipe(target, tmp_path):
    command = [sys.executable, "-m", "voxcpm_client", "say", "--target", target, "--out", str(tmp_path / "book.wav")]
    options = ["--json", "--max-steps", "1", "--timesteps", "4", "--continuity", "independent"]
    done = subprocess.run(
        [*command, *options], input=BOOK, capture_output=True, text=True, timeout=2 * HANG_SECONDS, check=True
    )
    assert json.loads(done.stdout)["summary"]["input_chars"] == len(BOOK)
