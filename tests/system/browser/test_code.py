"""The programs that the page shows: each of them, as it is copied, speaks what the page has spoken."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from selenium.webdriver import Chrome
from support.clients.chromium import Page
from support.servers.running import serving
from support.servers.threaded_gateways import gateway
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.audio import wav
from voxcpm_grpc.audio.uploads import decode
from voxcpm_server.auth.keys import create

pytestmark = pytest.mark.usefixtures("quiet_console")
PROGRAMS = ("curl", "openai", "client", "grpcurl")
TEXT = "It's 5 o'clock: \"tea\" costs $2, `ten` \\ 100 % of it. Ça va, 😀?\nNext line."
STATUS = "document.getElementById('status').textContent"


def program(page: Page, name: str) -> str:
    """The text of a program in the dialog, as the button Copy gives it."""
    page.run("void (navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); })")
    page.click("code")
    page.choose("program", name)
    page.click("code-copy")
    page.until("document.getElementById('code-copied').textContent === 'Copied.'")
    page.click("code-close")
    return page.run("window.copied")


def run(text: str, name: str, folder: Path, **variables: str) -> Path:
    """Run a program in a folder, as a visitor pastes it. Returns the file that it has written."""
    script = folder / f"program-{name}"
    script.write_text(text + "\n", "utf-8")
    interpreter = sys.executable if name in ("openai", "client") else "bash"
    done = subprocess.run(
        [interpreter, script],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    [found] = folder.glob("speech.*")
    return found


def samples(file: Path) -> np.ndarray:
    return decode(file.read_bytes(), target_rate=16000, max_seconds=600, max_bytes=1 << 30).waveform


@pytest.fixture
def spoken(browser: Chrome, demo_address: str, tmp_path: Path) -> tuple[Page, np.ndarray]:
    """The page over the bundled voice after it has spoken a text with settings, and its audio."""
    page = Page(browser, demo_address).ready()
    page.open("settings")
    for field, value in {
        "seed": "7",
        "cfg": "1.5",
        "temperature": "0.9",
        "speed": "1.2",
        "volume": "-6",
        "language": "English",
    }.items():
        page.fill(field, value)
    page.run("void (document.getElementById('timesteps').value = '6')")
    page.run("void (document.getElementById('format').value = 'wav')")
    page.driver.find_element("css selector", "[name=voice][value=miles]").click()
    page.run("document.getElementById('live').click()")
    page.fill("text", TEXT)
    page.click("speak")
    page.until(f"{STATUS} === 'Done.'")
    return page, samples(page.download(tmp_path))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_speaks_what_the_page_has_spoken(
    spoken: tuple[Page, np.ndarray], name: str, tmp_path_factory: pytest.TempPathFactory
):
    page, heard = spoken
    found = samples(run(program(page, name), name, tmp_path_factory.mktemp(name)))
    assert len(found) == len(heard)
    assert np.allclose(found, heard, atol=2 / 32768)


@pytest.mark.parametrize(
    ("name", "format"),
    [("curl", "mp3"), ("openai", "flac"), ("client", "opus"), ("grpcurl", "opus"), ("grpcurl", "flac")],
)
def test_a_program_writes_the_chosen_format(browser: Chrome, demo_address: str, name: str, format: str, tmp_path: Path):
    page = Page(browser, demo_address).ready()
    page.fill("text", "Hello there.")
    page.run(f"void (document.getElementById('format').value = '{format}')")
    file = run(program(page, name), name, tmp_path)
    assert file.suffix == f".{format}"
    assert len(samples(file)) > 8000


@pytest.mark.parametrize("choose", ["describe", "no voice", "reference", "prompt"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_takes_the_voice_of_the_page(
    browser: Chrome, address: str, recording: bytes, name: str, choose: str, tmp_path: Path
):
    """Over the random model, which takes descriptions and recordings."""
    decoded = decode(recording, target_rate=16000, max_seconds=60, max_bytes=1 << 30)
    (tmp_path / "recording.wav").write_bytes(wav.wav_bytes(decoded.waveform, 16000))
    page = Page(browser, address).ready()
    page.run("document.getElementById('live').click()")
    page.fill("text", "Hello.")
    page.fill("seed", "3")
    page.run("void (document.getElementById('format').value = 'wav')")
    if choose == "describe":
        page.choose("source", "describe")
        page.fill("style", "a calm old man")
    elif choose != "no voice":  # which a model without presets has at the start
        page.choose("source", "clone")
        page.choose("mode", choose)
        page.find("file").send_keys(str(tmp_path / "recording.wav"))
        page.until("document.getElementById('recording-length').textContent")
        if choose == "prompt":
            page.fill("transcript", "Some words' end.")
        page.click("consent")
    page.click("speak")
    page.until("window.voxcpm.conversation.take?.seconds > 0 && !document.getElementById('download').disabled")
    (tmp_path / "page").mkdir()
    heard = samples(page.download(tmp_path / "page"))
    found = samples(run(program(page, name), name, tmp_path))
    assert len(found) == len(heard)
    assert np.allclose(found, heard, atol=2 / 32768)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_speaks_in_the_language_and_the_delivery_of_the_page(
    browser: Chrome, address_of: Callable[[str], str], name: str, tmp_path: Path
):
    page = Page(browser, address_of("custom17")).ready()
    page.run("document.getElementById('live').click()")
    page.run("void (document.getElementById('speech-language').value = 'de')")
    page.run("void (document.getElementById('format').value = 'wav')")
    page.driver.find_element("css selector", "[name=voice][value=serena]").click()
    for field, value in {"text": "Drei.", "seed": "7", "delivery": "very happy"}.items():
        page.fill(field, value)
    page.click("speak")
    page.until(f"{STATUS} === 'Done.'")
    (tmp_path / "page").mkdir()
    heard = samples(page.download(tmp_path / "page"))
    text = program(page, name)
    assert "very happy" in text and '"de"' in text
    found = samples(run(text, name, tmp_path))
    assert len(found) == len(heard)
    assert np.allclose(found, heard, atol=2 / 32768)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A gateway over a server that asks for a key, and the key."""
    folder = tmp_path_factory.mktemp("keys")
    key = create("page", folder / "keys.toml")
    with (
        serving(folder / "voices", "--auth.keys", str(folder / "keys.toml")) as server,
        gateway(server.address) as address,
    ):
        yield address, key


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_takes_the_key_from_a_variable(browser: Chrome, name: str, tmp_path: Path, keyed: tuple[str, str]):
    address, key = keyed
    page = Page(browser, address)
    page.until("document.getElementById('key-dialog').open")
    page.press(*key, "Enter")
    page.ready()
    page.fill("text", "Hello.")
    text = program(page, name)
    assert key not in text
    assert run(text, name, tmp_path, VOXCPM_CLIENT_API_KEY=key).stat().st_size > 1000
    browser.get("about:blank")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_speaks_with_the_chosen_model(of_two: Page, name: str, tmp_path: Path):
    of_two.choose_model("other")
    of_two.driver.find_element("css selector", "[name=voice][value=vivian]").click()  # the first model has none
    of_two.fill("text", "Hello.")
    assert len(samples(run(program(of_two, name), name, tmp_path)))
