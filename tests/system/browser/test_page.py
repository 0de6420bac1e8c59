"""The web page in Chromium: its playback, measured by the clock of the audio thread, and its ways to use it."""

from __future__ import annotations

from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from support.clients.chromium import Page
from support.servers.running import Server, serving
from support.servers.threaded_gateways import gateway

from voxcpm_client import Client
from voxcpm_grpc.audio import wav
from voxcpm_grpc.audio.uploads import decode
from voxcpm_server.auth.keys import create

pytestmark = pytest.mark.usefixtures("quiet_console")
SOUND_SECONDS = 1.0  # from the first chunk to the first sample, also on a busy host
SILENCE_SECONDS = 0.5  # from the click to silence, also on a busy host
SENTENCE = "The quick brown fox jumps over the lazy dog near the river. "
CHOSEN = "document.querySelector('.voice:has(input:checked)')"
STARTED = "(window.events ?? []).filter((one) => one.event === 'started')"


def test_the_first_sound_of_a_fast_server_follows_the_first_chunk_at_once(page: Page):
    page.run("void (window.voxcpm.conversation.earlierFactor = 0.05)")  # by the text before it
    page.fill("text", SENTENCE)
    page.click("speak")
    start = page.until("window.voxcpm.conversation.player?.report.start")
    assert 0 <= start["sounded"] - start["arrived"] <= SOUND_SECONDS
    page.until("document.getElementById('first-audio').textContent.endsWith(' ms')")
    page.until(
        "parseFloat(document.getElementById('first-sound').textContent) >= "
        "parseFloat(document.getElementById('first-audio').textContent)"
    )


def test_a_minute_of_speech_has_no_gap(page: Page):
    page.run("document.getElementById('live').click()")
    page.fill("text", SENTENCE * 40)
    page.click("speak")
    page.until("window.voxcpm.conversation.ahead > 3 || window.voxcpm.conversation.player?.report.playing")
    report = page.until_played(60)
    assert (report["gaps"], report["gapSeconds"]) == (0, 0)
    assert report["position"] == report["playedSamples"]  # nothing was left out or played twice
    assert page.text("gaps") == "0"
    page.click("stop")


def test_stop_is_silent_at_once_and_shows_what_was_heard(page: Page):
    page.events()
    page.fill("text", SENTENCE * 20)
    page.click("speak")
    page.until_played(1)
    page.click("stop")
    silence = page.until("window.voxcpm.conversation.player.report.silence")
    assert 0 <= silence["silent"] - silence["asked"] <= SILENCE_SECONDS
    page.until("document.getElementById('status').textContent.startsWith('Stopped. Heard up to')")
    answer = page.until("window.events.find((one) => one.type === 'interrupted')")
    text = (SENTENCE * 20).strip()
    heard = answer["heard_input_end"]
    assert 0 < heard < len(text)
    assert page.run("document.querySelector('#said .heard').textContent") == text[:heard]
    assert page.run("document.querySelector('#said .lost').textContent").strip() == text[heard:].strip()
    assert "not heard" in page.run("document.querySelector('#said').textContent").lower()
    assert page.run("document.getElementById('stop').disabled")
    played = page.report["playedSamples"]
    page.fill("text", "Next.")
    page.click("speak")  # the same stream goes on, in the next turn
    page.until(f"window.voxcpm.conversation.player.report.playedSamples > {played}")
    assert page.run(f"{STARTED}.at(-1).turn") == 1


def test_text_is_spoken_while_it_is_typed(page: Page):
    page.events()
    page.press(*"This is ", *"spoken. ")
    page.until(f"{STARTED}.length")
    assert page.run(f"{STARTED}[0].text") == "This is spoken."
    page.fill("text", "This is spoken. And this, too.")  # at once: a pause between two keys would be one for the server
    page.press("Control+Enter")
    page.until(f"{STARTED}.length > 1")
    assert page.run(f"{STARTED}[1].text") == "And this, too."
    assert page.run(f"{STARTED}[1].turn") == 0


def test_edits_of_text_that_was_sent_are_not_spoken_again(page: Page):
    page.events()
    page.press(*"One two. Three")
    page.until(f"{STARTED}.length")
    page.press("Home", *"Zero. ", "End", *" four.")
    page.press("Control+Enter")
    page.until(f"{STARTED}.length > 1")
    assert page.run(f"{STARTED}.map((one) => one.text)") == ["One two.", "Three four."]


def test_a_character_that_is_replaced_by_a_similar_one_is_sent_whole(page: Page):
    page.events()
    page.fill("text", "One \U0001f600")
    page.until(f"{STARTED}.length")
    page.fill("text", "One \U0001f600b")
    page.fill("text", "One \U0001f601 two.")  # half of the new character is where half of the old one was
    page.press("Control+Enter")
    page.until(f"{STARTED}.length > 1")
    assert page.run(f"{STARTED}.map((one) => one.text)") == ["One \U0001f600", "\U0001f601 two."]


def test_a_text_without_an_end_is_spoken_after_a_pause(page: Page):
    page.events()
    page.press(*"no end")
    page.until(f"{STARTED}.length")
    assert page.run(f"{STARTED}[0].text") == "no end"


@pytest.mark.parametrize("mode", ["reference", "prompt", "hifi"])
def test_a_voice_is_cloned_from_the_microphone(page: Page, tiny: Server, mode: str):
    page.events()
    page.choose("source", "clone")
    page.choose("mode", mode)
    assert not page.find("save").is_enabled()
    page.click("record")
    page.until("parseFloat(document.getElementById('record-time').textContent) > 2")
    page.click("record")
    page.until("document.getElementById('recording-length').textContent")
    if mode != "reference":
        page.find("transcript").send_keys("Some words of the recording.")
    page.fill("text", "Hello there.")
    page.click("speak")
    assert page.text("alert-text") == "The speaker must have agreed: tick the box."
    page.click("consent")
    page.click("speak")
    page.until_played(0.2)
    header = page.until("window.events.find((one) => one.type === 'header')")
    assert header["voice"] == "inline"
    page.find("voice-name").send_keys(f"Mine {mode}")
    page.click("save")
    page.until("document.getElementById('voice-status').textContent.startsWith('Stored')")
    with Client(tiny.address) as client:
        stored = client.get_voice(f"Mine {mode}")
    assert stored.kind == ("reference" if mode == "reference" else "hifi")
    assert page.run(f"{CHOSEN}.querySelector('.voice-name').textContent") == f"Mine {mode}"
    page.run("window.events.length = 0")
    page.click("speak")
    header = page.until("window.events.find((one) => one.type === 'header')")
    assert header["voice"] == stored.id
    page.run("window.confirm = () => true")
    page.run(f"{CHOSEN}.querySelector('.delete').click()")
    page.until("document.getElementById('voice-status').textContent === 'Deleted.'")
    assert f"Mine {mode}" not in page.text("voices")


def test_a_voice_is_cloned_from_a_file(page: Page, recording: bytes, tmp_path: Path):
    decoded = decode(recording, target_rate=16000, max_seconds=60, max_bytes=1 << 30)
    (tmp_path / "voice.wav").write_bytes(wav.wav_bytes(decoded.waveform[: 16 * 1600], 16000))
    page.events()
    page.choose("source", "clone")
    page.find("file").send_keys(str(tmp_path / "voice.wav"))
    page.until("document.getElementById('recording-length').textContent.startsWith('1.6 s: short')")
    page.click("consent")
    page.fill("text", "Hello there.")
    page.click("speak")
    page.until_played(0.2)
    assert page.run("window.events.find((one) => one.type === 'header').voice") == "inline"


def test_a_described_voice_needs_words(page: Page):
    page.events()
    page.choose("source", "describe")
    page.fill("text", "Hello there.")
    page.click("speak")
    assert page.find("alert").get_attribute("role") == "alert"
    assert page.text("alert-text") == "Describe the voice first, or choose one from the list."
    page.find("style").send_keys("a calm old man")
    page.click("speak")
    page.until_played(0.2)
    assert not page.find("alert").is_displayed()


def test_the_keyboard_reaches_everything(page: Page):
    page.open("settings")
    page.find("text").click()
    page.press(*"Hello there.", "Control+Enter")
    page.until_played(0.1)
    page.press("Escape")
    page.until("document.getElementById('stop').disabled")
    page.choose("source", "clone")
    page.run("document.activeElement.blur()")
    reached = set()
    for _ in range(60):
        page.press("Tab")
        reached.add(page.run("document.activeElement.id || document.activeElement.name"))
    controls = page.run(
        "[...document.querySelectorAll('button, input, select, textarea, summary')]"
        ".filter((one) => !one.disabled && one.checkVisibility()).map((one) => one.id || one.name)"
    )
    assert set(controls) - reached == set()
    page.run("document.querySelector('[name=source]:checked').focus()")
    page.press("Left")
    page.until("!document.getElementById('source-describe').hidden")


def test_a_server_with_keys_asks_for_one(browser: Chrome, tmp_path: Path):
    key = create("page", tmp_path / "keys.toml")
    with (
        serving(tmp_path / "voices", "--auth.keys", str(tmp_path / "keys.toml")) as server,
        gateway(server.address) as address,
    ):
        page = Page(browser, address)
        page.until("document.getElementById('key-dialog').open")
        page.press(*key, "Enter")
        page.ready()
        page.fill("text", "Hello there.")
        page.click("speak")
        page.until_played(0.1)
        assert key not in page.run("location.href + document.cookie + JSON.stringify(localStorage)")


def test_nothing_comes_from_elsewhere(page: Page):
    page.fill("text", "Hello there.")
    page.click("speak")
    page.until_played(0.1)
    hosts = page.run("[...new Set(performance.getEntriesByType('resource').map((one) => new URL(one.name).host))]")
    assert hosts == [page.address]


def test_the_playback_works_without_audio_worklets(page: Page):
    page.run("void Object.defineProperty(AudioContext.prototype, 'audioWorklet', {value: undefined})")
    page.fill("text", SENTENCE)
    page.click("speak")
    page.until_played(0.5)
    page.click("stop")
    page.until("document.getElementById('status').textContent.startsWith('Stopped.')")
