"""A server of each model, and what the Python client gets from it: other clients must get the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.clients.model_calls import Call, call_of, keep_pairs, parametrize, serve
from support.engines.tolerances import ALONE
from support.servers.running import Server

from voxcpm_client import Client

ROOT = Path(__file__).parents[3]
if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))


pytest_generate_tests = parametrize
pytest_collection_modifyitems = keep_pairs


@pytest.fixture(scope="session")
def server(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(model, tmp_path_factory.mktemp("server")) as running:
        yield running
        assert not running.fault()


@pytest.fixture(scope="session")
def call(model: str) -> Call:
    return call_of(model)


@pytest.fixture(scope="session")
def expected(server: Server, call: Call) -> np.ndarray:
    """int16 samples, at the rate of the model."""
    with Client(server.address) as client:
        return client.say(call.text, **call.options).samples


@pytest.fixture
def check(expected: np.ndarray) -> Callable[[bytes], None]:
    """Compares audio in 16-bit PCM with that of the Python client."""

    def compare(audio: bytes) -> None:
        samples = np.frombuffer(audio, "<i2")
        assert len(samples) == len(expected) > 0
        assert np.abs(samples.astype(int) - expected).max() <= ALONE

    return compare
