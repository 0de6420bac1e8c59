"""The looks of the page: for readers of screens, narrow screens and fingers, in both themes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from support.clients.chromium import Page

pytestmark = pytest.mark.usefixtures("quiet_console")
AXE = Path(os.environ.get("NODE_PATH", "")) / "axe-core" / "axe.min.js"
PICTURES = os.environ.get("PAGE_PICTURES")
"""A folder for pictures of the page in all sizes and themes, for people to look at."""
SENTENCE = "The quick brown fox jumps over the lazy dog near the river. "
WIDTHS = {"wide": (1280, 1060), "phone": (390, 844)}
SOURCES = ("list", "describe", "clone")
LEAST_TARGET = 44  # pixels, for fingers


def looked_at(page: Page, name: str) -> None:
    if PICTURES:
        Path(PICTURES).mkdir(parents=True, exist_ok=True)
        page.picture(Path(PICTURES) / f"{name}.png")


def faults(page: Page) -> list[Any]:
    """The violations that axe-core finds."""
    page.driver.execute_script(AXE.read_text("utf-8"))
    found: Any = page.driver.execute_async_script("axe.run().then(arguments[0])")
    return [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
class TestInEachWidthAndTheme:
    def page(self, browser: Chrome, address: str, width: str, dark: bool) -> Page:
        wide, high = WIDTHS[width]
        return Page(browser, address, width=wide, height=high, dark=dark).ready()

    def test_readers_of_screens_find_no_fault_while_it_speaks(
        self, browser: Chrome, fast_address: str, width: str, dark: bool
    ):
        page = self.page(browser, fast_address, width, dark)
        looked_at(page, f"{width}-{'dark' if dark else 'light'}-empty")
        page.open("settings")
        page.open("measurements")
        page.run("document.getElementById('live').click()")
        page.fill("text", f"Привет. {SENTENCE * 4}")
        page.click("speak")
        page.until_played(0.5)
        looked_at(page, f"{width}-{'dark' if dark else 'light'}-speaking")
        assert faults(page) == []
        page.click("stop")
        page.until("document.querySelector('#said .lost')")
        page.find("cfg").send_keys("11")
        page.click("speak")
        page.until("!document.getElementById('alert').hidden")
        looked_at(page, f"{width}-{'dark' if dark else 'light'}-fault")
        assert faults(page) == []

    def test_readers_of_screens_find_no_fault_in_other_sources_and_dialogs(
        self, browser: Chrome, demo_address: str, width: str, dark: bool
    ):
        page = self.page(browser, demo_address, width, dark)
        page.click("example-short")
        page.click("speak")
        page.until_played(5)
        looked_at(page, f"{width}-{'dark' if dark else 'light'}-story")
        assert faults(page) == []  # with cards
        page.click("stop")
        for source in SOURCES[1:]:
            page.choose("source", source)
            if source == "clone":
                page.choose("mode", "hifi")
            looked_at(page, f"{width}-{'dark' if dark else 'light'}-{source}")
            assert faults(page) == []
        page.choose("source", "list")
        page.fill("text", SENTENCE)
        page.click("code")
        looked_at(page, f"{width}-{'dark' if dark else 'light'}-code")
        assert faults(page) == []

    @pytest.mark.parametrize("model", ["custom17", "base06", "design"])
    def test_readers_of_screens_find_no_fault_with_other_models(
        self, browser: Chrome, address_of: Callable[[str], str], width: str, dark: bool, model: str
    ):
        page = self.page(browser, address_of(model), width, dark)
        looked_at(page, f"{width}-{'dark' if dark else 'light'}-{model}")
        assert faults(page) == []
        page.open("settings")
        page.run("document.getElementById('speech-language').scrollIntoView()")
        looked_at(page, f"{width}-{'dark' if dark else 'light'}-{model}-settings")
        assert faults(page) == []


@pytest.mark.parametrize("source", SOURCES)
def test_a_narrow_screen_shows_everything(browser: Chrome, demo_address: str, source: str):
    page = Page(browser, demo_address, width=360, height=740).ready()
    page.open("settings")
    page.open("measurements")
    page.choose("source", source)
    if source == "clone":
        page.choose("mode", "hifi")
    page.fill("text", "Averyveryveryverylongwordwithoutanyplacetobreakitinthemiddleofit. " + SENTENCE)
    if source == "list":
        page.click("speak")
        page.until("document.querySelector('#said span')")
    assert page.run("document.scrollingElement.scrollWidth") <= 360
    outside = page.run(
        "[...document.querySelectorAll('main *')].filter((one) => one.checkVisibility() && !one.closest("
        "'.visually-hidden, #voices') && one.getBoundingClientRect().right > 360)"
        ".map((one) => one.outerHTML.slice(0, 80))"
    )
    assert outside == []


@pytest.mark.parametrize("source", SOURCES)
def test_fingers_find_targets_of_44_pixels(browser: Chrome, demo_address: str, source: str):
    page = Page(browser, demo_address, width=390, height=844).ready()
    page.open("settings")
    page.choose("source", source)
    small = page.run(
        "[...document.querySelectorAll('button, select, textarea, summary, input')]"
        ".filter((one) => one.checkVisibility()).map((one) => {"
        "  const box = (['checkbox', 'radio'].includes(one.type) ? one.closest('.voice, label') : one)"
        "    .getBoundingClientRect(); return [one.id || one.value, box.width, box.height]; })"
        f".filter(([, width, height]) => Math.min(width, height) < {LEAST_TARGET})"
    )
    assert small == []


def test_the_choice_of_a_model_fits_a_narrow_screen(browser: Chrome, address_of_two: str):
    page = Page(browser, address_of_two, width=360, height=740).ready()
    looked_at(page, "phone-light-two-models")
    assert faults(page) == []
    assert page.run("document.scrollingElement.scrollWidth") <= 360
    assert page.run("document.getElementById('models').getBoundingClientRect().height") >= LEAST_TARGET
    title = page.run("document.querySelector('h1').getBoundingClientRect().height")
    assert title < LEAST_TARGET  # it stays on one line


def test_a_phone_shows_the_text_the_voice_and_speak_at_first(browser: Chrome, demo_address: str):
    page = Page(browser, demo_address, width=390, height=664).ready()  # between the bars of a browser
    bar = page.run("document.getElementById('actions').getBoundingClientRect().top")
    for element in ("document.getElementById('text')", "document.querySelector('.voice:has(input:checked)')"):
        box = page.run(f"{element}.getBoundingClientRect()")
        assert box["top"] >= 0
        assert box["bottom"] <= bar
    assert page.run("document.getElementById('speak').getBoundingClientRect().bottom") <= 664


@pytest.mark.parametrize(("width", "shown"), [(1280, True), (390, False)])
def test_keys_are_named_only_where_there_is_a_keyboard(browser: Chrome, address: str, width: int, shown: bool):
    page = Page(browser, address, width=width).ready()
    assert page.run("document.querySelector('.keys').checkVisibility()") is shown


def test_the_measurements_are_folded_and_explained(page: Page):
    assert not page.find("real-time").is_displayed()
    page.find("measurements").find_element("tag name", "summary").click()
    rows = page.run(
        "[...document.querySelectorAll('#measurements dl div')].map((one) => one.lastElementChild.textContent)"
    )
    assert len(rows) == 6
    assert all(row.endswith(".") for row in rows)
