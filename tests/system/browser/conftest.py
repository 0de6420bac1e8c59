"""Gateways over real servers, and Chromium to look at them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome
from support.checkpoints import VOICE
from support.chromium import Page, chromium
from support.servers import Server, serving
from support.threaded_gateways import gateway

from voxcpm_grpc.audio import Encoding, decode
from voxcpm_grpc.audio.wav import header


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the random model, which is much faster than speech and never ends a sentence early."""
    with serving(tmp_path_factory.mktemp("voices")) as server:
        yield server


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of the bundled voice."""
    with serving(tmp_path_factory.mktemp("voices"), model="demo") as server:
        yield server


@pytest.fixture(scope="session")
def address(tiny: Server) -> Iterator[str]:
    """A gateway over the random model, as HOST:PORT."""
    with gateway(tiny.address) as found:
        yield found


@pytest.fixture(scope="session")
def recording() -> bytes:
    """A recording of the bundled voice."""
    return (VOICE / "presets" / "slt.flac").read_bytes()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory, recording: bytes) -> Iterator[Chrome]:
    folder = tmp_path_factory.mktemp("chromium")
    microphone = folder / "microphone.wav"
    found = decode(recording, target_rate=48000, max_seconds=60, max_bytes=1 << 30)
    samples = (found.waveform * 32767).astype("int16")
    microphone.write_bytes(header(48000, Encoding.PCM_S16LE, samples.nbytes) + samples.tobytes())
    with chromium(folder, microphone) as driver:
        yield driver


@pytest.fixture
def page(browser: Chrome, address: str) -> Page:
    """The page over the random model, which speaks noise without an end."""
    return Page(browser, address).ready()
