"""The text and the settings: checked as they are typed, kept over a reload, and carried by links and examples."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest
from selenium.webdriver import Chrome
from support.clients.chromium import Page
from support.servers.running import Server, serving
from support.servers.threaded_gateways import gateway

from voxcpm_server.auth.keys import create

pytestmark = pytest.mark.usefixtures("quiet_console")
STATUS = "document.getElementById('status').textContent"
LONG = 1 << 20  # characters


@pytest.mark.parametrize(
    ("field", "typed", "fault"),
    [
        ("cfg", "11", "Guidance must be a number from 0 to 10."),
        ("temperature", "-1", "Temperature must be a number from 0 to 2."),
        ("seed", "1.5", "Seed must be a whole number from 0 to 9007199254740991."),
        ("seed", "-1", "Seed must be a whole number from 0 to 9007199254740991."),
        ("language", "12", "Language must be a name or a tag, such as German or pt-BR."),
    ],
)
def test_a_field_is_checked_as_it_is_typed(page: Page, field: str, typed: str, fault: str):
    page.open("settings")
    page.find(field).send_keys(typed)
    assert page.text(f"{field}-fault") == fault
    assert page.find(field).get_attribute("aria-invalid") == "true"
    assert f"{field}-fault" in page.find(field).get_attribute("aria-describedby")
    page.run("void (document.getElementById('settings').open = false)")
    page.fill("text", "Hello there.")
    page.click("speak")
    assert page.text("alert-text") == fault
    assert page.run("document.activeElement.id") == field  # in a part that is open again
    page.fill(field, "")
    assert page.text(f"{field}-fault") == ""
    page.click("speak")
    page.until_played(0.1)
    assert not page.find("alert").is_displayed()


@pytest.mark.parametrize(
    "values",
    [
        {"cfg": "0", "temperature": "0", "seed": "0", "speed": "0.5", "volume": "-30"},
        {
            "cfg": "10",
            "temperature": "2",
            "seed": "9007199254740991",
            "speed": "2",
            "volume": "20",
            "language": "German",
        },
    ],
)
def test_the_server_takes_both_ends_of_each_range(page: Page, values: dict[str, str]):
    page.open("settings")
    for field, value in values.items():
        page.fill(field, value)
    page.fill("text", "Hello there.")
    page.click("speak")
    page.until_played(0.1)
    assert not page.find("alert").is_displayed()


def test_speed_and_volume_go_with_the_request(page: Page):
    page.fill("speed", "1.5")
    page.fill("volume", "-6")
    assert (page.text("speed-value"), page.text("volume-value")) == ("1.5×", "-6 dB")
    config = page.run("window.voxcpm.conversation.config()")
    assert (config["speed"], config["volume_gain_db"]) == (1.5, -6)
    page.open("settings")
    page.click("reset")
    assert not {"speed", "volume_gain_db"} & page.run("window.voxcpm.conversation.config()").keys()


def test_characters_are_counted_and_too_many_are_refused(page: Page):
    page.fill("text", "Grüße 😀")
    assert page.text("count") == "7 characters"
    assert page.run("window.voxcpm.server.model.max_text_chars") == LONG
    page.run("void (window.voxcpm.server.model.max_text_chars = 1000)")  # as many as the page would take make it slow
    page.run("document.getElementById('live').click()")
    page.fill("text", "a" * 1001)
    assert page.text("count") == "1,001 characters; the limit is 1,000"
    page.click("speak")
    assert page.text("alert-text") == "The text is longer than 1,000 characters. Shorten it."


def test_a_text_of_several_messages_is_spoken(quick: Page):
    quick.run("document.getElementById('live').click()")
    quick.run("void (document.getElementById('text').value = 'A \\u{1F600} word or two. '.repeat(10000))")
    quick.run("void document.getElementById('text').dispatchEvent(new InputEvent('input', {bubbles: true}))")
    quick.click("speak")
    quick.until_played(0.5)
    assert not quick.find("alert").is_displayed()
    quick.click("stop")
    quick.until(f"{STATUS}.startsWith('Stopped. Heard up to')")


def test_the_text_and_the_settings_survive_a_reload(page: Page):
    page.fill("text", "Still here.")
    page.open("settings")
    page.find("seed").send_keys("7")
    page.fill("speed", "1.25")
    page.run("void (document.getElementById('timesteps').value = '4')")
    page.run("void document.getElementById('timesteps').dispatchEvent(new Event('input'))")
    page.click("live")
    page.reload()
    assert page.find("text").get_property("value") == "Still here."
    config = page.run("window.voxcpm.conversation.config()")
    assert (config["seed"], config["speed"], config["timesteps"]) == (7, 1.25, 4)
    assert not page.find("live").is_selected()
    page.run("new Promise((resolve) => setTimeout(resolve, 1000))")  # longer than typing waits
    assert page.run("window.voxcpm.conversation.history.length") == 0  # nothing is spoken by itself


@pytest.mark.parametrize("id", ["example-short", "example-interrupt", "example-long"])
def test_an_example_fills_in_a_text(quick: Page, id: str):
    quick.click(id)
    text = quick.find("text").get_property("value")
    assert 100 < len(text) <= 4096
    if id == "example-interrupt":
        assert "then Stop in the middle" in quick.text("notes")
        quick.click("speak")
        quick.until_played(2)
        quick.click("stop")
        quick.until(f"{STATUS}.startsWith('Stopped. Heard up to')")


def test_a_link_carries_text_and_voice_and_never_a_key(browser: Chrome, tiny: Server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    key = create("page", folder / "keys.toml")
    with (
        serving(folder / "voices", "--auth.keys", str(folder / "keys.toml"), model="demo") as server,
        gateway(server.address) as address,
    ):
        page = Page(browser, address)
        page.until("document.getElementById('key-dialog').open")
        page.press(*key, "Enter")
        page.ready()
        page.fill("text", "Over the #hills & <b>far</b> away.")
        page.driver.find_element("css selector", "[name=voice][value=miles]").click()
        link = page.copied_link()
        page.until(f"{STATUS}.startsWith('The link is copied.')")
        assert key not in link
        assert parse_qs(urlsplit(link).fragment) == {"text": ["Over the #hills & <b>far</b> away."], "voice": ["miles"]}
        browser.get("about:blank")
        other = Page(browser, address, fragment=f"#{urlsplit(link).fragment}")
        other.until("document.getElementById('key-dialog').open")
        other.press(*key, "Enter")
        other.ready()
        assert other.find("text").get_property("value") == "Over the #hills & <b>far</b> away."
        assert other.run("document.querySelector('[name=voice]:checked').value") == "miles"
        assert other.run("location.hash") == ""
        assert other.run("window.voxcpm.conversation.history.length") == 0  # a link speaks nothing by itself
        browser.get("about:blank")


def test_the_text_of_a_link_is_never_executed(browser: Chrome, address: str):
    hostile = "%3Cimg%20src%3Dx%20onerror%3D%22window.hacked%3D1%22%3E%20Hello."
    page = Page(browser, address, fragment=f"#text={hostile}&voice={hostile}").ready()
    assert "has no voice" in page.text("notes")
    page.run("void (location.hash = 'text=Another.')")  # a link that is opened in the same tab
    page.until("document.getElementById('text').value === 'Another.'")
    page.run("void (location.hash = `text=${arguments[0]}`)", hostile)
    page.until("document.getElementById('text').value.startsWith('<img')")
    page.click("speak")
    page.until_played(0.1)
    page.click("stop")
    page.click("code")
    assert "<img src=x" in page.text("code-text")
    assert page.run("window.hacked ?? null") is None
    assert page.run("document.querySelector('main img, dialog img')") is None


def test_a_link_that_would_be_too_long_is_refused(page: Page):
    page.run("document.getElementById('live').click()")
    page.fill("text", "word " * 2000)
    page.click("link")
    assert page.text("alert-text").startswith("The link would have")
