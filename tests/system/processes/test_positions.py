"""Servers whose engines have few positions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.servers.running import serving
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import Client, InvalidArgument
from voxcpm_grpc.audio import wav_bytes


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        serving(tmp_path_factory.mktemp("voices"), "--engine.max-model-len", "250") as server,
        Client(server.address, timeout=HANG_SECONDS) as client,
    ):
        yield client


def test_a_server_with_few_positions_speaks_every_sentence_that_fits(client):
    """The speech and the text of the sentences before would not fit."""
    text = "This sentence is of some length and says little. " * 4
    options: dict[str, Any] = {"seed": 1, "timesteps": 4, "no_voice": True}
    for continuity in ("independent", "carry"):
        summary = client.say(text, continuity=continuity, **options).summary
        assert summary is not None
        assert summary.segments == 4
        with pytest.raises(InvalidArgument, match="positions and the engine has 250"):
            client.say("x" * 300, continuity=continuity, **options)


def test_an_engine_counts_the_tokens_of_the_transcript(client):
    """The model's own tokenizer decides, in the process of the engine."""
    tone = wav_bytes(np.sin(np.arange(16_000) / 20, dtype=np.float32) / 4, 16_000)
    with pytest.raises(InvalidArgument, match="positions and the engine has 250"):
        client.add_prompt(tone, "A long transcript of a short recording. " * 10)
    assert not [voice for voice in client.voices(kind="prompt") if voice.id.startswith("prm_")]
    assert client.add_prompt(tone, "A tone.").id
