"""Requests as browsers send them: of pages with a rebound name, of other origins, and of pages that are allowed."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Mapping

import pytest
from support.servers.running import Server, serving
from support.servers.threaded_gateways import gateway
from support.servers.tls_files import NAME, Files
from support.servers.waiting import HANG_SECONDS

PAGE = "https://app.example"
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/143.0.0.0 Safari/537.36"
PREFLIGHT = {  # of Chromium 143, for OpenAI's package in a page
    "Connection": "keep-alive",
    "Accept": "*/*",
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-arch,x-stainless-helper-method,"
    "x-stainless-lang,x-stainless-os,x-stainless-package-version,x-stainless-retry-count,x-stainless-runtime,"
    "x-stainless-runtime-version,x-stainless-timeout",
    "Access-Control-Request-Private-Network": "true",
    "Origin": PAGE,
    "User-Agent": AGENT,
    "Sec-Fetch-Mode": "cors",
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Dest": "empty",
    "Referer": f"{PAGE}/",
    "Accept-Encoding": "gzip, deflate, br, zstd",
    "Accept-Language": "en-US,en;q=0.9",
}
JSON = {"Content-Type": "application/json", "User-Agent": AGENT}
SPEECH = json.dumps({"input": "Good morning.", "voice": "miles", "response_format": "pcm"})
HANDSHAKE = {
    "Connection": "Upgrade",
    "Pragma": "no-cache",
    "Cache-Control": "no-cache",
    "User-Agent": AGENT,
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Extensions": "permessage-deflate; client_max_window_bits",
}
REBOUND = [
    ("POST", "/v1/audio/speech", JSON, SPEECH),
    ("POST", "/generate", JSON, json.dumps({"target_text": "Good morning."})),
    ("GET", "/v1/audio/voices", {}, None),
    ("POST", "/v1/audio/voices", {"Content-Type": "multipart/form-data; boundary=b"}, "--b--\r\n"),
    ("DELETE", "/v1/audio/voices/ada", {}, None),
    ("OPTIONS", "/v1/audio/speech", PREFLIGHT, None),
    ("GET", "/", {}, None),
    ("GET", "/page/main.js", {}, None),
    ("GET", "/health", {}, None),
    ("GET", "/v1/audio/stream", HANDSHAKE, None),
]


def request(
    address: str, method: str, path: str, headers: Mapping[str, str], body: str | None = None
) -> tuple[int, http.client.HTTPMessage, bytes]:
    """Status, headers and body of the response to a request."""
    connection = http.client.HTTPConnection(address, timeout=HANG_SECONDS)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


def host_of(server: Server) -> str:
    """Host and port of a server's gateway."""
    found = re.search(r"HTTP is at http://(\S+)", server.log)
    assert found
    return found[1]


@pytest.mark.parametrize(("method", "path", "headers", "body"), REBOUND)
def test_a_page_whose_name_was_rebound_to_the_gateway_gets_nothing(site, method, path, headers, body):
    before = site.server.calls()
    name = "evil.example:" + site.host.rpartition(":")[2]
    own = {"Host": name, "Origin": f"http://{name}", "Sec-Fetch-Site": "same-origin"}
    status, found, answer = request(site.host, method, path, {**headers, **own}, body)
    assert status == 421
    assert "access-control-allow-origin" not in found
    assert b"evil.example" in answer
    assert b"http.allowed_hosts" in answer
    assert site.server.calls() == before


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1", "http://localhost:3000"])
def test_pages_of_other_origins_get_nothing(site, origin):
    for method, path, headers, body in REBOUND[:6]:
        status, found, answer = request(site.host, method, path, {**headers, "Origin": origin}, body)
        assert status == 403
        assert "access-control-allow-origin" not in found
        assert b"http.allowed_origins" in answer


def test_the_preflight_of_chromium_is_granted_and_the_request_after_it(site):
    with gateway(site.server.address, allowed_origins=(PAGE,)) as address:
        status, found, _ = request(address, "OPTIONS", "/v1/audio/speech", PREFLIGHT)
        assert status == 200
        assert found["access-control-allow-origin"] == PAGE
        assert found["access-control-allow-private-network"] == "true"
        wanted = PREFLIGHT["Access-Control-Request-Headers"].split(",")
        assert set(found["access-control-allow-headers"].split(",")) == set(wanted)
        assert "POST" in found["access-control-allow-methods"]
        headers = JSON | {"Origin": PAGE} | dict.fromkeys(wanted[2:], "x")
        status, found, audio = request(address, "POST", "/v1/audio/speech", headers, SPEECH)
        assert (status, found["access-control-allow-origin"], found["vary"]) == (200, PAGE, "Origin")
        assert len(audio) > 20000


def test_a_password_for_a_proxy_in_front_is_no_key(site):
    headers = JSON | {"Authorization": "Basic YWRhOnNlY3JldA==", "Origin": site.url}
    status, _, audio = request(site.host, "POST", "/v1/audio/speech", headers, SPEECH)
    assert (status, len(audio) > 20000) == (200, True)


def test_the_names_of_the_certificate_and_of_the_settings_are_served(tmp_path):
    files = Files.new(tmp_path)
    flags = [text for name, path in files.settings.items() for text in (f"--tls.{name}", str(path))]
    with serving(tmp_path / "voices", "--http", "127.0.0.1:0", "--http.allowed-hosts", "tts.lan", *flags) as server:
        address = host_of(server)
        hosts = {NAME: 200, "tts.lan:8000": 200, "TTS.lan": 200, "127.0.0.1": 200, "evil.example": 421, "": 421}
        assert {host: request(address, "GET", "/health", {"Host": host})[0] for host in hosts} == hosts
        assert "allowed hosts: *" not in server.log
