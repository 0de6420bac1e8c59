"""The page over models that cannot do all that VoxCPM2 can: it shows what they can do, and that works."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from selenium.webdriver import Chrome
from support.clients.chromium import Page

pytestmark = pytest.mark.usefixtures("quiet_console")
LANGUAGES = [
    "Chinese",
    "English",
    "French",
    "German",
    "Italian",
    "Japanese",
    "Korean",
    "Portuguese",
    "Russian",
    "Spanish",
]
SHOWN: dict[str, dict[str, Any]] = {
    "custom17": {"sources": [], "fields": ["delivery", "speech-language"], "languages": LANGUAGES, "voices": 9},
    "custom06": {"sources": [], "fields": ["speech-language"], "languages": LANGUAGES, "voices": 9},
    "design": {"sources": [], "fields": ["style", "speech-language"], "languages": LANGUAGES, "voices": 0},
    "base06": {
        "sources": ["list", "clone"],
        "fields": ["speech-language"],
        "modes": ["reference", "prompt", "hifi"],
        "languages": LANGUAGES,
        "voices": 0,
    },
    "0.5b": {"sources": ["list", "clone"], "fields": ["language"], "languages": [], "voices": 1},
}
VISIBLE = "(one) => one.checkVisibility()"
LANGUAGE = "document.getElementById('speech-language')"


def visible(page: Page, selector: str, value: str) -> list[str]:
    """The values of an attribute of the elements of a selector that are shown."""
    return page.run(f"[...document.querySelectorAll('{selector}')].filter({VISIBLE}).map((one) => one.{value})")


@pytest.fixture
def open_page(browser: Chrome, address_of: Callable[[str], str]) -> Callable[[str], Page]:
    return lambda model: Page(browser, address_of(model)).ready()


@pytest.mark.parametrize("model", SHOWN)
def test_the_page_shows_what_the_model_can_do(open_page: Callable[[str], Page], model: str):
    page, expected = open_page(model), SHOWN[model]
    page.open("settings")
    assert visible(page, "#sources label", "firstElementChild.value") == expected["sources"]
    assert visible(page, "#delivery, #style, #speech-language, #language", "id") == expected["fields"]
    assert page.run(f"[...{LANGUAGE}.options].slice(1).map((one) => one.text)") == expected["languages"]
    assert len(visible(page, "#voices .voice", "id")) == expected["voices"]
    if "clone" in expected["sources"]:
        page.choose("source", "clone")
        assert visible(page, "#modes label", "firstElementChild.value") == expected.get("modes", [])
        assert visible(page, "#clone-style", "id") == []


def spoken(page: Page) -> dict[str, Any]:
    """Speak the text, stop at the first audio, and return the options of the stream."""
    page.events()
    page.click("speak")
    page.until("!document.getElementById('alert').hidden || window.events.some((one) => one.type === 'header')")
    assert not page.find("alert").is_displayed(), page.text("alert-text")
    page.until("window.voxcpm.conversation.take?.seconds > 0")
    page.click("stop")
    page.until("window.events.some((one) => one.type === 'interrupted')")
    config = page.run("window.voxcpm.conversation.config()")
    return {name: value for name, value in config.items() if value is not None}


def write(page: Page, text: str) -> None:
    page.run("document.getElementById('live').checked && document.getElementById('live').click()")
    page.fill("text", text)


def choose_language(page: Page, tag: str) -> None:
    page.run(f"void ({LANGUAGE}.value = '{tag}', {LANGUAGE}.dispatchEvent(new Event('input', {{bubbles: true}})))")


def test_a_speaker_follows_a_description_of_the_delivery_in_a_language(open_page: Callable[[str], Page]):
    page = open_page("custom17")
    write(page, "Guten Morgen.")
    page.driver.find_element("css selector", "[name=voice][value=vivian]").click()
    page.fill("delivery", "very happy")
    choose_language(page, "de")
    chosen = {"voice": "vivian", "style": "very happy", "language": "de", "speech_language": "de"}
    assert chosen.items() <= spoken(page).items()
    page.reload()
    assert page.run(f"{LANGUAGE}.value") == "de"
    assert page.run("document.getElementById('delivery').value") == "very happy"
    page.open("settings")
    page.click("reset")
    given = spoken(page)
    assert given["voice"] == "vivian" and not {"style", "language", "speech_language"} & given.keys()


@pytest.mark.parametrize("style", ["", "a calm old man"])
def test_a_voice_is_described_or_made_up(open_page: Callable[[str], Page], style: str):
    page = open_page("design")
    assert "Without a description it makes up any voice." in page.text("style-hint")
    write(page, "Hello.")
    page.fill("style", style)
    assert spoken(page).get("style", "") == style


def test_a_model_that_needs_a_voice_leads_to_a_recording(
    open_page: Callable[[str], Page], recording: bytes, tmp_path: Path
):
    page = open_page("base06")
    assert page.find("source-clone").is_displayed()  # nothing is stored yet
    page.choose("source", "list")
    assert page.text("no-voices").startswith("No voice is stored yet.")
    write(page, "Hello.")
    page.click("speak")
    page.until("!document.getElementById('alert').hidden")
    assert page.text("alert-text") == "Choose a voice first, or clone one."
    (tmp_path / "recording.flac").write_bytes(recording)
    page.choose("source", "clone")
    page.choose("mode", "prompt")
    page.find("file").send_keys(str(tmp_path / "recording.flac"))
    page.until("document.getElementById('recording-length').textContent")
    page.fill("transcript", "Some words of it.")
    page.click("consent")
    assert "prompt" in spoken(page)
    page.fill("voice-name", "Ada")
    page.click("save")
    page.until("document.getElementById('voice-status').textContent === 'Stored Ada.'")
    assert page.run("document.querySelector('.voice:has(input:checked) .voice-name').textContent") == "Ada"
    assert spoken(page)["voice"].startswith("hifi_")
    page.driver.execute_script("window.confirm = () => true")
    page.driver.find_element("css selector", "#voices .delete").click()
    page.until("document.getElementById('voice-status').textContent === 'Deleted.'")


def test_a_recording_for_an_older_model_is_stored_as_a_prompt(
    open_page: Callable[[str], Page], recording: bytes, tmp_path: Path
):
    page = open_page("0.5b")
    (tmp_path / "recording.flac").write_bytes(recording)
    page.choose("source", "clone")
    page.find("file").send_keys(str(tmp_path / "recording.flac"))
    page.until("document.getElementById('recording-length').textContent")
    page.fill("transcript", "Some words of it.")
    page.click("consent")
    page.fill("voice-name", "Ada")
    page.click("save")
    page.until("document.getElementById('voice-status').textContent === 'Stored Ada.'")
    page.fill("text", "Hello.")
    assert page.run("window.voxcpm.conversation.config().voice").startswith("prm_")


def test_what_another_model_had_is_forgotten_at_a_reload(open_page: Callable[[str], Page]):
    page = open_page("custom06")
    page.run(
        "void sessionStorage.setItem('voxcpm-draft', JSON.stringify({source: 'clone', voice: 'hazel', "
        "fields: {'speech-language': 'sv', style: 'calm', delivery: 'slowly'}}))"
    )
    page.reload()
    assert page.find("source-list").is_displayed() and not page.find("source-clone").is_displayed()
    write(page, "Hello.")
    given = spoken(page)
    assert given["voice"] == "aiden" and not {"style", "speech_language"} & given.keys()


MODEL = "document.getElementById('models').value"
VOICES = "[...document.querySelectorAll('#voices input')].map((one) => one.value)"


def test_one_model_is_no_choice(open_page: Callable[[str], Page]):
    assert not open_page("custom06").find("models").is_displayed()


def test_each_model_of_a_server_speaks_with_its_voices(of_two: Page):
    page = of_two
    assert page.find("models").is_displayed() and page.run(MODEL) == "hazel"
    assert page.run(VOICES)[:3] == ["hazel", "miles", "george"]
    page.choose_model("other")
    assert "hazel" not in page.run(VOICES) and "vivian" in page.run(VOICES)
    write(page, "Hello.")
    page.driver.find_element("css selector", "[name=voice][value=vivian]").click()
    assert {"model": "other", "voice": "vivian"}.items() <= spoken(page).items()
    page.choose_model("hazel")
    assert spoken(page)["model"] == "hazel"
    header = page.run("window.events.findLast((one) => one.type === 'header')")
    assert (header["model"], header["sample_rate"]) == ("hazel", 24000)


def test_a_sample_is_of_the_chosen_model(of_two: Page):
    of_two.choose_model("other")
    of_two.driver.find_element("css selector", ".voice:has([value=vivian]) .sample").click()
    of_two.until(
        "document.querySelector('.voice:has([value=vivian]) .sample use').getAttribute('href') === '#icon-stop'"
    )
    assert not of_two.find("alert").is_displayed()


def test_a_reload_and_a_link_keep_the_model(of_two: Page, browser: Chrome, address_of_two: str):
    page = of_two
    page.choose_model("other")
    page.driver.find_element("css selector", "[name=voice][value=vivian]").click()
    page.reload()
    assert page.run(MODEL) == "other"
    assert page.run("document.querySelector('[name=voice]:checked').value") == "vivian"
    page.fill("text", "Hello.")
    fragment = urlsplit(page.copied_link()).fragment
    assert parse_qs(fragment) == {"text": ["Hello."], "voice": ["vivian"], "model": ["other"]}
    page.run("sessionStorage.clear()")
    browser.get("about:blank")
    other = Page(browser, address_of_two, fragment=f"#{fragment}").ready()
    other.until(f"{MODEL} === 'other' && document.querySelector('[name=voice]:checked')?.value === 'vivian'")


def test_a_model_that_is_gone_gives_way_to_the_default_one(of_two: Page, browser: Chrome, address_of_two: str):
    browser.get("about:blank")
    page = Page(browser, address_of_two, fragment="#model=gone").ready()
    assert page.run(MODEL) == "hazel"
    said = "[...document.body.innerText.matchAll(/This server has no model .*/g)].map(([one]) => one)"
    page.until(f"{said}.length")
    assert page.run(said) == ["This server has no model “gone”; its default model speaks."]
    page.reload()
    assert page.run(said) == []  # it is said once
