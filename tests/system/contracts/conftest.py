"""A server with the bundled voice that serves all contracts, and the ears of the tests."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.clients.ears import SENTENCE
from support.engines.qwen3_codec import checkpoint
from support.servers.running import FEW_TIMESTEPS, FIXED_SEEDS, Server, serving

ROOT = Path(__file__).parents[3]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # for the tools: they are not installed
MOST_ERRORS = 0.34  # of the words of the sentence
ALL = ("--contracts.enabled", "google,localai,riva")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    voices = tmp_path_factory.mktemp("voices")
    with serving(voices, *ALL, model="demo", family=FEW_TIMESTEPS, program=FIXED_SEEDS) as server:
        yield server
        assert not server.fault()


@pytest.fixture(scope="session")
def multilingual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a tiny Qwen3-TTS CustomVoice, which can be told a language."""
    with serving(tmp_path_factory.mktemp("voices"), model=checkpoint("custom17"), family=()) as server:
        yield server
        assert not server.fault()


@pytest.fixture(scope="session")
def understood() -> Callable[[np.ndarray], None]:
    """Asserts that samples, int16 at 16 kHz, are the sentence."""
    from tools.voice import judge

    recognizer = judge.Recognizer()

    def check(samples: np.ndarray) -> None:
        transcript = recognizer.transcribe(samples)
        assert judge.word_errors(SENTENCE, transcript).rate <= MOST_ERRORS, transcript

    return check
