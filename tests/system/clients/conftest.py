"""A server of the bundled voice, and what the Python client gets from it: other clients must get the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.servers import Server, serving
from support.tolerances import ALONE

from voxcpm_client import Client

ROOT = Path(__file__).parents[3]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


@dataclass(frozen=True)
class Call:
    """The call that every client makes."""

    text: str = "The train arrived ten minutes late."
    voice: str = "slt"
    seed: int = 7

    @property
    def json(self) -> str:
        """Its messages, one a line."""
        turn = {"sampling": {"seed": str(self.seed)}}
        config = {"config": {"conditioning": {"preset": self.voice}, "turn": turn}}
        return f"{json.dumps(config)}\n{json.dumps({'text': self.text})}"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("voices"), model="demo") as running:
        yield running


@pytest.fixture(scope="session")
def call() -> Call:
    return Call()


@pytest.fixture(scope="session")
def expected(server: Server, call: Call) -> np.ndarray:
    """int16 samples, at the rate of the model."""
    with Client(server.address) as client:
        return client.say(call.text, voice=call.voice, seed=call.seed).samples


@pytest.fixture
def check(expected: np.ndarray) -> Callable[[bytes], None]:
    """Compares audio in 16-bit PCM with that of the Python client."""

    def compare(audio: bytes) -> None:
        samples = np.frombuffer(audio, "<i2")
        assert len(samples) == len(expected) > 0
        assert np.abs(samples.astype(int) - expected).max() <= ALONE

    return compare
