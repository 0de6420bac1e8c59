"""The bundled voice at other speeds: the words are still understood, and the pitch is that of the speaker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Unpack

import numpy as np
import pytest
from support.servers.running import serving

from tools.voice import judge
from voxcpm_client import Client, SpeechOptions

OPTIONS: SpeechOptions = {"seed": 1, "sample_rate": 16000, "trim_leading_silence": 0}
SENTENCES = {
    "hazel": "They left the party before midnight.",
    "miles": "What did you have for lunch today?",
    "george": "The train arrived ten minutes late.",
}
MOST_ERRORS = 0.25  # of 19 words; the recognizer knows speech of an ordinary pace best
PITCH = 0.03  # by which a measured pitch may differ: an estimate has steps of 1 %


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("voices"), model="demo") as server, Client(server.address) as client:
        yield client


def spoken(client: Client, voice: str, /, **options: Unpack[SpeechOptions]) -> np.ndarray:
    """The samples of the sentence of a voice."""
    return client.say(SENTENCES[voice], **OPTIONS | options | {"voice": voice}).samples


@pytest.fixture(scope="module")
def plain(client: Client) -> dict[str, np.ndarray]:
    """The samples of each sentence at its own speed, by voice."""
    return {voice: spoken(client, voice) for voice in SENTENCES}


@pytest.mark.parametrize("speed", [0.75, 1.25, 1.5])
def test_words_are_understood_and_the_pitch_stays(client, plain, speed):
    recognizer = judge.Recognizer()
    errors, mistaken = judge.Errors(0, 0), judge.Errors(0, 0)
    for voice, text in SENTENCES.items():
        samples = spoken(client, voice, speed=speed)
        assert len(samples) == int(len(plain[voice]) / speed + 0.5)
        assert judge.pitch(samples) == pytest.approx(judge.pitch(plain[voice]), rel=PITCH)
        transcript = recognizer.transcribe(samples)
        print(f"{speed} {voice}: {transcript}")
        errors += judge.word_errors(text, transcript)
        mistaken += judge.word_errors(SENTENCES["hazel" if voice == "miles" else "miles"], transcript)
    assert errors.rate <= MOST_ERRORS
    assert mistaken.rate > errors.rate, "the transcripts are as near to other sentences"


def test_a_louder_voice_is_understood_and_does_not_clip(client):
    plain = spoken(client, "hazel", format="pcm_f32le")
    loud = spoken(client, "hazel", volume_gain_db=12)
    assert len(loud) == len(plain)
    assert (loud.astype(float) ** 2).mean() > 4 * ((32768 * plain) ** 2).mean()
    assert abs(loud.astype(int)).max() < 0.95 * 32768
    assert judge.word_errors(SENTENCES["hazel"], judge.Recognizer().transcribe(loud)).rate <= MOST_ERRORS
