"""Gateways over real servers, and Chromium to look at them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest
from selenium.webdriver import Chrome
from support.clients.chromium import Page, chromium
from support.engines.checkpoints import OLDER, VOICE
from support.engines.qwen3_codec import checkpoint
from support.servers.paced_servers import PacedServer, paced_server
from support.servers.running import NO_COMPILER, Server, serving
from support.servers.threaded_gateways import gateway

from voxcpm_grpc.audio import Encoding
from voxcpm_grpc.audio.uploads import decode
from voxcpm_grpc.audio.wav import header

EXPECTED = re.compile(r"status of (401|503)|[?]model=\S+ .*status of 404|ERR_CONNECTION_REFUSED|ERR_EMPTY_RESPONSE")


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
def fast(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PacedServer]:
    """A server that makes speech 20 times as fast as it plays, as a GPU does."""
    with paced_server(tmp_path_factory.mktemp("voices"), 20) as server:
        yield server


@pytest.fixture(scope="session")
def fast_address(fast: PacedServer) -> Iterator[str]:
    with gateway(fast.address) as found:
        yield found


@pytest.fixture(scope="session")
def slow_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway over a server that makes speech a tenth slower than it plays, as a busy CPU does."""
    with paced_server(tmp_path_factory.mktemp("voices"), 0.9) as server, gateway(server.address) as found:
        yield found


@pytest.fixture(scope="session")
def demo_address(demo: Server) -> Iterator[str]:
    """A gateway over the bundled voice, as HOST:PORT."""
    with gateway(demo.address) as found:
        yield found


@pytest.fixture(scope="session")
def address(tiny: Server) -> Iterator[str]:
    """A gateway over the random model, as HOST:PORT."""
    with gateway(tiny.address) as found:
        yield found


@pytest.fixture(scope="session")
def address_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Gateways over tiny models that cannot do all that VoxCPM2 can, as HOST:PORT, by the name of the model.

    The names are those of variants of Qwen3-TTS, and 0.5b.
    """
    with ExitStack() as stack:

        @cache
        def address(model: str) -> str:
            found = OLDER[0] if model == "0.5b" else checkpoint(model)
            family = NO_COMPILER if model == "0.5b" else ()
            server = stack.enter_context(serving(tmp_path_factory.mktemp("voices"), model=found, family=family))
            return stack.enter_context(gateway(server.address))

        yield address


@pytest.fixture(scope="session")
def address_of_two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway over the bundled voice and, after it, a model with built-in voices."""
    other = ("--model", f"other={checkpoint('custom06')}@cpu")
    with (
        serving(tmp_path_factory.mktemp("voices"), *other, model=f"hazel={VOICE}@cpu") as server,
        gateway(server.address) as address,
    ):
        yield address


@pytest.fixture(scope="session")
def recording() -> bytes:
    """A recording of the bundled voice."""
    return (VOICE / "presets" / "miles.flac").read_bytes()


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


@pytest.fixture
def quick(browser: Chrome, fast_address: str) -> Page:
    """The page over a server that is 20 times as fast as speech."""
    return Page(browser, fast_address).ready()


@pytest.fixture
def of_two(browser: Chrome, address_of_two: str) -> Page:
    """The page over two models, of which the first is chosen."""
    page = Page(browser, address_of_two).ready()
    page.run("sessionStorage.clear()")
    return page.reload()


@pytest.fixture
def quiet_console(browser: Chrome) -> Iterator[None]:
    """No test leaves an error in the console, such as a violation of the content security policy.

    Requests that a server refuses, and connections to one that is gone, are no faults of the page.
    """
    browser.get_log("browser")
    yield
    found = [one["message"] for one in browser.get_log("browser") if one["level"] == "SEVERE"]
    assert [one for one in found if not EXPECTED.search(one)] == []
