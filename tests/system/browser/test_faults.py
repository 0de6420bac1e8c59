"""Faults and doubts as the page tells them: in words for its visitor, and for as long as they matter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from support.clients.chromium import Page
from support.servers.paced_servers import PacedServer, paced_server
from support.servers.ports import free_port
from support.servers.running import Server
from support.servers.threaded_gateways import gateway

pytestmark = pytest.mark.usefixtures("quiet_console")
SENTENCE = "The quick brown fox jumps over the lazy dog near the river. "
CONVERSATION = "window.voxcpm.conversation"
STATUS = "document.getElementById('status').textContent"
ALERT = "document.getElementById('alert')"
FOR_PROGRAMMERS = re.compile(r"unix:|/tmp|\bcode\b|[0-9a-f]{32}|_|\d\.\d+\.\d", re.IGNORECASE)
SAID = "window.said"  # all that the status line has said


@pytest.fixture
def restarting(tmp_path: Path) -> Iterator[PacedServer]:
    """A server, somewhat faster than speech, that a test stops and starts again."""
    with paced_server(tmp_path / "voices", 4) as server:
        yield server


def listen(page: Page) -> None:
    """Keep what the status line says in `window.said`."""
    page.run(
        "(() => { window.said = []; const status = document.getElementById('status');"
        " new MutationObserver(() => window.said.push(status.textContent)).observe(status, {childList: true}); })()"
    )


def interrupted_by(page: Page, loss) -> None:
    """Speak a long text, and lose the server in the middle."""
    listen(page)
    page.fill("text", SENTENCE * 10)
    page.click("speak")
    page.until_played(1)
    loss()
    page.until(f"!{ALERT}.hidden")


def test_a_lost_server_is_found_again_and_the_rest_is_spoken(browser: Chrome, restarting: PacedServer):
    with gateway(restarting.address) as address:
        page = Page(browser, address).ready()
        interrupted_by(page, restarting.stop)
        sentence = page.text("alert-text")
        assert sentence.endswith("Reconnecting…")
        assert not FOR_PROGRAMMERS.search(sentence)
        page.until(f"{STATUS}.startsWith('Stopped early, after')")  # when what had arrived was heard
        restarting.start()
        page.until(f"{ALERT}.hidden")
        page.until(f"{SAID}.includes('Connected again.')")
        assert "Done." not in page.run(SAID)
        assert "Not spoken" in page.text("said")
        page.driver.find_element("css selector", "#notes button").click()
        page.until(f"{CONVERSATION}.playing")
        assert page.find("notes").is_displayed() is False
        last = page.until(f"{CONVERSATION}.history.length === 2 && {CONVERSATION}.history[1].points.join('')")
        assert (SENTENCE * 10).strip().endswith(last)
        page.click("stop")


def test_a_lost_gateway_is_found_again(browser: Chrome, fast: PacedServer):
    listen_at = f"127.0.0.1:{free_port()}"
    with gateway(fast.address, listen=listen_at):
        page = Page(browser, listen_at).ready()
        page.fill("text", "Hello.")
        page.click("speak")
        page.until(f"{STATUS} === 'Done.'")
    page.until(f"!{ALERT}.hidden")
    assert page.text("alert-text") == "The connection to the server was lost. Reconnecting…"
    with gateway(fast.address, listen=listen_at):
        page.until(f"{ALERT}.hidden")
        page.until(f"{STATUS} === 'Connected again.'")
        page.click("speak")
        page.until(f"{STATUS} === 'Done.'")
        browser.get("about:blank")


def test_a_page_that_finds_no_server_looks_for_it(browser: Chrome, restarting: PacedServer):
    with gateway(restarting.address) as address:
        restarting.stop()
        page = Page(browser, address)
        page.until(f"!{ALERT}.hidden")
        assert page.text("alert-text") == "The server cannot be reached. Reconnecting…"
        restarting.start()
        page.until(f"{STATUS} === 'Connected again.'")
        assert not page.find("alert").is_displayed()


def test_the_request_of_an_error_is_behind_details(browser: Chrome, tiny: Server, address: str):
    page = Page(browser, address).ready()
    page.run("window.voxcpm.conversation.config = () => ({cfg_value: 99})")
    page.fill("text", "Hello.")
    page.click("speak")
    page.until(f"!{ALERT}.hidden")
    sentence = page.text("alert-text")
    assert sentence == "Guidance is 99; it must be from 0 to 10."
    assert page.find("cfg").get_attribute("aria-invalid") == "true"
    assert not page.find("alert-more").is_displayed()
    page.find("alert-details").find_element("tag name", "summary").click()
    details = page.find("alert-more")
    assert details.is_displayed()
    assert re.search(r"Request: \w{32}", details.text)
    assert page.text("status") != "Done."


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            {"message": "unix:/tmp/x/grpc: connection refused (code 14)", "type": "invalid_request_error"},
            "The server does not accept this. Details has its reason.",
        ),
        (
            {"message": "no slot became free; retry later or raise max_queue_time", "type": "rate_limit_error"},
            "The server is busy. Try again in a moment.",
        ),
        (
            {"message": "the caller has 4 streams and the limit is 4; try later", "type": "rate_limit_error"},
            "The caller has 4 streams and the limit is 4; try later.",
        ),
        (
            {"message": "the call has failed; the gateway's log has the cause", "type": "server_error"},
            "Something went wrong on the server. Try again; if it happens again, tell its operator what Details says.",
        ),
        (
            {"message": "prompt.transcript has 9000 characters and the limit is 2000", "param": "prompt.transcript"},
            "Words of the recording has 9000 characters and the limit is 2000.",
        ),
        (
            {"message": "the voice 'my_voice' does not exist", "param": "voice", "code": "not_found"},
            "The voice 'my_voice' does not exist.",
        ),
        (
            {"message": "the style has 600 characters and the limit is 500; shorten it", "param": "style"},
            "The description has 600 characters and the limit is 500; shorten it.",
        ),
    ],
)
def test_errors_speak_to_a_person(page: Page, error: dict[str, str], sentence: str):
    explained = page.driver.execute_async_script(
        "const [error, done] = arguments; import('/page/errors.js').then(({explain}) => done(explain(error)));", error
    )
    assert explained["sentence"] == sentence
    assert error["message"] in explained["details"]


def test_a_warning_stays_until_the_next_text(quick: Page):
    quick.fill("text", "Привет. ")
    quick.click("speak")
    quick.until("document.getElementById('notes').textContent.includes('Cyrillic letters')")
    quick.until(f"{STATUS} === 'Done.'")
    assert quick.find("notes").is_displayed()
    assert "claims to speak English only" in quick.text("notes")
    quick.fill("text", "Hello.")
    quick.click("speak")
    quick.until("document.getElementById('notes').hidden")


def test_a_text_with_nothing_to_speak_is_not_done(quick: Page):
    quick.fill("text", "...")
    quick.click("speak")
    quick.until(f"{STATUS}.startsWith('Nothing was spoken')")


def test_a_microphone_that_is_refused_says_what_to_do(page: Page):
    page.run(
        "void (navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('no', 'NotAllowedError')))"
    )
    page.choose("source", "clone")
    page.click("record")
    page.until(f"!{ALERT}.hidden")
    assert page.text("alert-text").endswith("Allow it beside the address, then record again.")
