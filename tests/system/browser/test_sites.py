"""Chromium on pages of other names than the gateway's address: behind a proxy, rebound, and of other origins."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from support.clients.chromium import Page
from support.servers.reverse_proxies import NAME, nginx, reverse_proxy
from support.servers.running import Server
from support.servers.threaded_gateways import gateway

SPEAK = """
const [address, done] = arguments;
const headers = {
  "content-type": "application/json",
  authorization: "Bearer none",
  "x-stainless-lang": "js",
  "x-stainless-retry-count": "0",
};
const body = JSON.stringify({input: "Hello.", response_format: "pcm", extra_params: {max_steps: 2}});
fetch(`${address}/v1/audio/speech`, {method: "POST", headers, body})
  .then(async (reply) => [reply.status, reply.headers.get("x-request-id"), (await reply.arrayBuffer()).byteLength])
  .then(done)
  .catch((error) => done(String(error)));
"""
OPEN = """
const [address, done] = arguments;
const socket = new WebSocket(`${address.replace("http", "ws")}/v1/audio/stream`);
socket.onopen = () => done("open");
socket.onclose = () => done("closed");
"""


class Blank(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>A site</title>")


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The origin of another web site."""
    with HTTPServer(("127.0.0.1", 0), Blank) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://app.example:{server.server_port}"
        server.shutdown()


def speak(browser: Chrome, address: str) -> Any:
    return browser.execute_async_script(SPEAK, address)


def test_the_page_speaks_behind_nginx_with_the_lines_of_the_documentation(
    browser: Chrome, tiny: Server, tmp_path: Path
):
    with (
        gateway(tiny.address, allowed_hosts=(NAME,)) as address,
        reverse_proxy(nginx, tmp_path, address) as proxy,
    ):
        page = Page(browser, proxy.origin).ready()
        page.fill("text", "The quick brown fox jumps over the lazy dog near the river. ")
        page.click("speak")
        page.until_played(0.5)
        page.click("stop")
        browser.get("about:blank")


def test_a_page_whose_name_is_rebound_to_the_gateway_reaches_nothing(browser: Chrome, tiny: Server, address: str):
    rebound = f"http://evil.example:{address.rpartition(':')[2]}"
    browser.get(rebound)
    shown = json.loads(browser.find_element(By.TAG_NAME, "body").text)
    assert shown["error"]["code"] == "host_not_allowed"
    before = tiny.calls()
    assert speak(browser, rebound)[0] == 421
    assert browser.execute_async_script(OPEN, rebound) == "closed"
    assert tiny.calls() == before


def test_a_page_of_another_origin_speaks_only_if_it_is_allowed(browser: Chrome, tiny: Server, address: str, site: str):
    browser.get(site)
    assert speak(browser, f"http://{address}") == "TypeError: Failed to fetch"
    assert browser.execute_async_script(OPEN, f"http://{address}") == "closed"
    for allowed in (site, "*"):
        with gateway(tiny.address, allowed_origins=(allowed,)) as open_address:
            status, request_id, size = speak(browser, f"http://{open_address}")
            assert (status, bool(request_id), size > 0) == (200, True, True)
            assert browser.execute_async_script(OPEN, f"http://{open_address}") == "open"
    browser.get("about:blank")
