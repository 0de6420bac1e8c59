"""The cards of the voices, and their samples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome
from support.clients.chromium import Page
from support.servers.running import Server
from support.servers.waiting import wait_until

from voxcpm_client import Client

pytestmark = pytest.mark.usefixtures("quiet_console")
CARDS = "[...document.querySelectorAll('.voice')].filter((one) => one.checkVisibility())"
SAMPLE = "document.querySelector('.voice:nth-child(2) .sample')"


@pytest.fixture
def voices(browser: Chrome, demo_address: str) -> Iterator[Page]:
    """The page over the bundled voice, in a browser that keeps no samples."""
    page = Page(browser, demo_address)
    page.command("Storage.clearDataForOrigin", origin=page.origin, storageTypes="indexeddb")
    yield page.reload()


def test_a_card_says_what_a_voice_is_like(voices: Page):
    names = voices.run(f"{CARDS}.map((one) => one.querySelector('.voice-name').textContent)")
    abouts = voices.run(f"{CARDS}.map((one) => one.querySelector('.about').textContent)")
    assert names == ["hazel", "miles", "george", "Any voice"]
    assert abouts[0] == "An American woman, warm and close, who takes her time."
    assert all(abouts)
    assert voices.run("document.querySelector('[name=voice]:checked').value") == "hazel"  # the default
    assert voices.run("document.querySelector('.voice:has(input:checked) .tag').textContent") == "default"


def test_a_chosen_card_speaks(voices: Page):
    voices.events()
    voices.run(f"{CARDS}[1].querySelector('input').click()")
    voices.fill("text", "Hello there.")
    voices.click("speak")
    header = voices.until("window.events.find((one) => one.type === 'header')")
    assert voices.run("window.voxcpm.conversation.config().voice") == "miles"
    assert header["voice"]


def test_a_sample_is_spoken_once_and_then_plays_at_once(voices: Page, demo: Server):
    assert voices.run(f"{SAMPLE}.getAttribute('aria-label')") == "Play a sample of miles"
    before = demo.calls("Generate")
    voices.run(f"{SAMPLE}.click()")
    voices.until(f"{SAMPLE}.dataset.state === 'playing'")
    assert voices.run(f"{SAMPLE}.getAttribute('aria-label')") == "Stop a sample of miles"
    voices.until(f"{SAMPLE}.dataset.state === 'idle'")  # at its end
    wait_until(lambda: demo.calls("Generate") == before + 1)
    voices.reload()
    voices.run(f"{SAMPLE}.click()")
    voices.until(f"{SAMPLE}.dataset.state === 'playing'")
    voices.run(f"{SAMPLE}.click()")
    assert voices.run(f"{SAMPLE}.dataset.state") == "idle"
    assert voices.run("performance.getEntriesByType('resource').filter((one) => one.name.includes('speech'))") == []


def test_speaking_ends_a_sample(voices: Page):
    voices.run(f"{SAMPLE}.click()")
    voices.until(f"{SAMPLE}.dataset.state === 'playing'")
    voices.fill("text", "Hello there.")
    voices.click("speak")
    assert voices.run(f"{SAMPLE}.dataset.state") == "idle"


def test_names_and_descriptions_of_others_are_shown_as_text(
    browser: Chrome, tiny: Server, address: str, recording: bytes
):
    hostile = "<img src=x onerror='window.hacked=1'>"
    with Client(tiny.address) as client:
        stored = client.add_reference(recording, name=hostile, labels={"description": hostile})
        page = Page(browser, address).ready()
        assert page.run(f"{CARDS}.map((one) => one.querySelector('.voice-name').textContent)")[0] == hostile
        assert page.run("window.hacked ?? null") is None
        client.delete_voice(stored.id)


def test_many_voices_are_found_by_their_words(browser: Chrome, tiny: Server, address: str, recording: bytes):
    with Client(tiny.address) as client:
        stored = {
            client.add_hifi(
                recording, f"Words number {number}. ", name=f"Voice {number}", labels={"description": about}
            ).id
            for number, about in enumerate(["calm", "quick"] * 5)
        }
        page = Page(browser, address).ready()
        page.find("voice-filter").send_keys("quick")
        assert len(page.run(f"{CARDS}.map((one) => one.textContent)")) == 5, page.text("voices")
        page.find("voice-filter").send_keys(" and absent")
        assert page.find("no-voices").is_displayed()
        for id in stored:
            client.delete_voice(id, cascade=True)
