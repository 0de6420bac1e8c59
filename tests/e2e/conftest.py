"""The server under test: the one at `--target HOST:PORT`, or a new one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from support.servers.running import serving
from support.servers.uploads import tone

from voxcpm_client import Client, ModelInfo
from voxcpm_grpc.v1 import tts_pb2_grpc


@pytest.fixture(scope="session")
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if given := request.config.getoption("--target"):
        yield given
        return
    with serving(tmp_path_factory.mktemp("voices")) as server:
        yield server.address


@pytest.fixture(scope="session")
def client(target: str) -> Iterator[Client]:
    with Client(target, timeout=300, retries=0) as connected:
        yield connected


@pytest.fixture(scope="session")
def info(client: Client) -> ModelInfo:
    return client.model_info()


@pytest.fixture(scope="session")
def channel(target: str) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(target) as connected:
        yield connected


@pytest.fixture(scope="session")
def stub(channel: grpc.Channel) -> Any:
    return tts_pb2_grpc.VoxCPMServiceStub(channel)


@pytest.fixture(scope="session")
def same_audio(info: ModelInfo) -> Callable[[np.ndarray, np.ndarray], None]:
    """Asserts that two speeches are the same up to rounding, if the model computes in float32."""

    def compare(first: np.ndarray, second: np.ndarray) -> None:
        if info.dtype == "float32":
            assert first.dtype == second.dtype == np.int16
            assert len(first) == len(second)
            assert np.abs(first.astype(int) - second).max() <= 4

    return compare


@pytest.fixture
def recording() -> bytes:
    return tone()
