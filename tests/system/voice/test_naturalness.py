"""The judge of naturalness prefers speech to noise."""

import wave
from pathlib import Path

import numpy as np

from tools.voice import judge, naturalness
from tools.voice.dataset import RATE

SPEECH = Path(__file__).parents[2] / "tools/speech"


def test_noise_is_less_natural_than_speech() -> None:
    with wave.open(str(SPEECH / "miles.wav")) as file:
        speech = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    noise = np.random.default_rng(1).integers(-3000, 3000, 48_000).astype(np.int16)
    score = naturalness.P808()
    assert score(judge.heard(speech, RATE)) > 3.5 > score(noise)
