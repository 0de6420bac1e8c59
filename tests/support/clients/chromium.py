"""Debian's Chromium without a window, and the gateway's page in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from support.servers.waiting import HANG_SECONDS, wait_until

SAVED = (".wav", ".mp3", ".flac", ".opus")
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{folder}</dir><cachedir>{cache}</cachedir>
<alias><family>system-ui</family><prefer><family>Inter</family></prefer></alias></fontconfig>"""


@contextmanager
def chromium(folder: Path, microphone: Path) -> Iterator[Chrome]:
    """Run Chromium. Its microphone plays a WAV file, and pages may use it. All names below `example` are this host.

    folder: for its profile
    """
    debian = Path(os.environ["SYSTEM_TEST_DEBIAN"])
    fonts = folder / "fonts.conf"
    fonts.write_text(FONTS.format(folder=debian / "usr/share/fonts", cache=folder / "fonts"), "utf-8")
    libraries = debian.glob("usr/lib/*-linux-gnu*/pulseaudio")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join([os.environ.get("LD_LIBRARY_PATH", ""), *map(str, libraries)]),
        "FONTCONFIG_FILE": str(fonts),
        "HOME": str(folder),
    }
    options = ChromeOptions()
    options.binary_location = str(debian / "usr/lib/chromium/chromium")  # the script in usr/bin knows /usr only
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--autoplay-policy=no-user-gesture-required",
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={microphone}",
        f"--user-data-dir={folder / 'profile'}",
        "--host-resolver-rules=MAP *.example 127.0.0.1",
        "--ignore-certificate-errors",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = ChromeService(str(debian / "usr/bin/chromedriver"), env=environment)
    driver = Chrome(options, service)
    driver.set_script_timeout(HANG_SECONDS)
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """The page of a gateway in Chromium, as its visitors use it."""

    def __init__(
        self,
        driver: Chrome,
        address: str,
        *,
        width: int = 1280,
        height: int = 980,
        dark: bool = False,
        fragment: str = "",
    ) -> None:
        self.driver = driver
        self.address = address
        phone = width < 500
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone
        )
        self.command("Emulation.setTouchEmulationEnabled", enabled=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.command("Emulation.setEmulatedMedia", features=[scheme])
        # Chromium may load the icon of the page that was open before in the next one, whose policy refuses it.
        driver.get("about:blank")
        driver.get_log("browser")
        self.origin = address if "://" in address else f"http://{address}"
        fresh = self.command(
            "Page.addScriptToEvaluateOnNewDocument", source="sessionStorage.clear()"
        )  # as in a new tab
        driver.get(f"{self.origin}/{fragment}")
        self.command("Page.removeScriptToEvaluateOnNewDocument", **fresh)

    def command(self, name: str, **arguments: Any) -> Any:
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, arguments)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of an expression in the page."""
        return self.driver.execute_script(f"return ({script})", *arguments)

    def until(self, script: str, seconds: float = HANG_SECONDS) -> Any:
        """Wait until an expression is true, and return its value."""
        found: list[Any] = []

        def holds() -> bool:
            found[:] = [self.run(script)]
            return bool(found[0])

        wait_until(holds, seconds)
        return found[0]

    def ready(self) -> Page:
        """Wait until the page knows the server."""
        self.until("document.getElementById('status').textContent === 'Ready.'")
        return self

    def reload(self) -> Page:
        self.driver.refresh()
        return self.ready()

    def find(self, id: str) -> WebElement:
        return self.driver.find_element(By.ID, id)

    def text(self, id: str) -> str:
        return self.run("document.getElementById(arguments[0]).textContent", id)

    def click(self, id: str) -> None:
        self.find(id).click()

    def copied_link(self) -> str:
        """Copy the link of the page, and return it."""
        self.run("void (navigator.clipboard.writeText = async (text) => { window.copied = text; })")
        self.click("link")
        return self.until("window.copied")

    def open(self, id: str) -> None:
        """Unfold a part of the page."""
        self.run("void (document.getElementById(arguments[0]).open = true)", id)

    def choose(self, name: str, value: str) -> None:
        """Choose a radio button."""
        self.driver.find_element(By.CSS_SELECTOR, f"[name={name}][value={value}]").click()

    def choose_model(self, name: str) -> None:
        """Choose a model of a server that has several, and wait for its voices."""
        self.run(
            "(([one, name]) => { one.value = name; one.dispatchEvent(new Event('change')); })(arguments)",
            self.find("models"),
            name,
        )
        self.until(f"window.voxcpm.server.model.model === '{name}' && document.querySelector('#voices input')")

    def fill(self, id: str, text: str) -> None:
        """Put text into a field at once, as a paste does."""
        self.run(
            "(([id, text]) => { const one = document.getElementById(id); one.value = text;"
            " one.dispatchEvent(new InputEvent('input', {bubbles: true})); })(arguments)",
            id,
            text,
        )

    def press(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is. `Control+Enter` are two keys at once."""
        for key in keys:
            chain = ActionChains(self.driver)
            *held, last = [getattr(Keys, name.upper(), name) for name in key.split("+")] if len(key) > 1 else [key]
            for one in held:
                chain.key_down(one)
            chain.send_keys(last)
            for one in held:
                chain.key_up(one)
            chain.perform()

    def download(self, folder: Path) -> Path:
        """Press Download, and wait for the file, which is the only one in the folder."""
        self.command("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self.click("download")

        def written() -> list[Path]:
            """Chromium writes into a file of another name, and renames it."""
            return [one for one in folder.iterdir() if one.suffix in SAVED and one.stat().st_size]

        wait_until(lambda: written() or self.find("alert").is_displayed())
        assert self.text("alert-text") == ""
        [found] = written()
        return found

    @property
    def report(self) -> dict[str, Any]:
        """The newest report of the playback in the audio thread."""
        return self.run("window.voxcpm.conversation.player?.report ?? {}")

    @property
    def rate(self) -> int:
        return self.run("window.voxcpm.conversation.player.rate")

    def until_played(self, seconds: float) -> dict[str, Any]:
        """Wait until the audio thread has played that much speech. Returns its report."""
        report = "window.voxcpm.conversation.player?.report"
        self.until(f"({report}?.playedSamples ?? 0) >= {seconds} * (window.voxcpm.conversation.player?.rate ?? 1e9)")
        return self.report

    def events(self) -> None:
        """Keep the JSON events of later streams in `window.events`."""
        self.run(
            "(() => { window.events = []; const {conversation} = window.voxcpm; const handle = conversation.handle;"
            " conversation.handle = function (event) {"
            " if (event.type !== 'audio') window.events.push(event); return handle.call(this, event); }; })()"
        )

    def problems(self) -> list[str]:
        """The errors in the console of the browser, such as violations of the content security policy."""
        return [json.dumps(entry) for entry in self.driver.get_log("browser") if entry["level"] == "SEVERE"]

    def picture(self, path: Path) -> None:
        path.write_bytes(self.driver.get_screenshot_as_png())
