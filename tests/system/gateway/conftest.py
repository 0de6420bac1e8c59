"""A server with the bundled voice and its gateway, and the ears of the tests."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.clients.ears import SENTENCE
from support.servers.running import FEW_TIMESTEPS, FIXED_SEEDS, Server, serving

ROOT = Path(__file__).parents[3]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # for the tools: they are not installed
MOST_ERRORS = 0.34  # of the words of the sentence


@dataclass(frozen=True)
class Site:
    """A server and the address of its gateway."""

    server: Server
    url: str

    @property
    def api(self) -> str:
        return f"{self.url}/v1"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    voices = tmp_path_factory.mktemp("voices")
    flags = ("--http", "127.0.0.1:0", "--http.voice-aliases", "nova=miles,alloy=hazel")
    with serving(voices, *flags, model="demo", family=FEW_TIMESTEPS, program=FIXED_SEEDS) as server:
        found = re.search(r"HTTP is at (http://\S+)", server.log)
        assert found
        yield Site(server, found[1])
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
