"""The bundled voice without the silence at its start: its words are understood as well, and nothing else is missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.servers.running import serving

from tools.voice import judge
from voxcpm_client import Client

RATE = 16000
SENTENCES = {  # their first sounds are soft
    "hazel": "Fresh fish was sold at the market.",
    "miles": "How long will the meeting take today?",
    "george": "Thirty people came to the concert.",
}
SECONDS = 0.02  # at least left out


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    flags = ("--engine.prefix-caching", "false")  # with which repeated requests differ by rounding
    with serving(tmp_path_factory.mktemp("voices"), *flags, model="demo") as server, Client(server.address) as client:
        yield client


def test_words_at_the_beginning_are_understood_as_well_as_with_the_silence(client):
    recognizer = judge.Recognizer()
    found = {"whole": judge.Errors(0, 0), "trimmed": judge.Errors(0, 0)}
    for voice, text in SENTENCES.items():
        for seed in range(2):
            options = {"voice": voice, "seed": seed, "sample_rate": RATE}
            whole = client.say(text, trim_leading_silence=0, **options)
            trimmed = client.say(text, **options)
            lost = trimmed.summary.trimmed_samples
            assert lost >= SECONDS * RATE and whole.summary.trimmed_samples == 0
            np.testing.assert_array_equal(whole.samples[lost:], trimmed.samples)
            for name, speech in (("whole", whole), ("trimmed", trimmed)):
                transcript = recognizer.transcribe(speech.samples)
                print(f"{name} {voice} {seed}: {transcript}")
                found[name] += judge.word_errors(text, transcript)
    assert found["trimmed"].edits <= found["whole"].edits + 2
