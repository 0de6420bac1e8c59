"""Hosts and origins: no page of another site gets in, whatever its name resolves to, and an allowed page does."""

import asyncio
import json
import logging

import pytest
from support.clients.websocket_options import DIRECT
from websockets.asyncio.client import connect

from voxcpm_gateway.routes import openapi

pytestmark = pytest.mark.thorough

HOSTILE = [
    "evil.example",
    "evil.example:8000",
    "EVIL.example.",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.1@evil.example",
    "evil.example:80@127.0.0.1",
    "localhost:8000.evil.example",
    "notlocalhost",
    "[::1].evil.example",
    "[evil.example]",
    "xn--mnchen-3ya.example",
    "m\xfcnchen.example",
    "tts.example",
    "",
    "\x1b[2Jevil",
    "e" * 4000,
]
OURS = [
    "127.0.0.1",
    "127.0.0.1:80",
    "192.0.2.1:31000",
    "[::1]",
    "[2001:DB8::1]:8000",
    "localhost",
    "LocalHost.:8000",
    "a.b.localhost:8000",
    "127.0.0.1:",
]
REQUESTS = [
    ("POST", "/v1/audio/speech"),
    ("GET", "/v1/audio/voices"),
    ("POST", "/v1/audio/voices"),
    ("DELETE", "/v1/audio/voices/ada"),
    ("OPTIONS", "/v1/audio/speech"),
    ("HEAD", "/"),
    ("GET", "/"),
    ("GET", "/page/main.js"),
    ("GET", "/docs"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("POST", "/generate"),
    ("GET", "/no/such/address"),
]
PAGE = "https://app.example"


async def answer(
    gateway, *lines: str, body: bytes = b"", connection: str = "close"
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the response to a request of these lines."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write("\r\n".join([*lines, f"Connection: {connection}", "", ""]).encode("latin-1") + body)
    head, _, rest = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    first, *fields = head.decode("latin-1").split("\r\n")
    return int(first.split()[1]), dict(field.lower().split(": ", 1) for field in fields), rest


async def status(gateway, *lines: str) -> int:
    return (await answer(gateway, *lines))[0]


async def refused_socket(gateway, host: str, origin: str) -> tuple[int, dict[str, str], bytes]:
    """The response to the handshake of a WebSocket that is not opened."""
    lines = (
        f"Host: {host}",
        f"Origin: {origin}",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    return await answer(gateway, "GET /v1/audio/stream HTTP/1.1", *lines, "Upgrade: websocket", connection="Upgrade")


# ---- hosts


@pytest.mark.parametrize(("method", "path"), REQUESTS)
async def test_a_rebound_name_reaches_no_address(gateway, served, method, path):
    body = json.dumps({"input": "Hello."}).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: evil.example", "Origin: http://evil.example"]
    lines += ["Access-Control-Request-Method: POST"] * (method == "OPTIONS")
    lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"] * (method == "POST")
    code, headers, content = await answer(gateway, *lines, body=body)
    assert code == 421
    assert "access-control-allow-origin" not in headers
    if method != "HEAD":
        error = json.loads(content)["error"]
        assert error["code"] == "host_not_allowed"
        for remedy in ("evil.example", "http.allowed_hosts", "--allowed-host", "localhost", "IP address"):
            assert remedy in error["message"]
    assert not served.pool.requests


@pytest.mark.parametrize("host", HOSTILE)
async def test_other_hosts_are_refused_with_a_short_and_harmless_message(gateway, host):
    code, _, content = await answer(gateway, "GET /health HTTP/1.1", f"Host: {host}")
    assert code in ((400, 421) if host.startswith("\x1b") else (421,))  # a parser may refuse control characters
    assert b"\x1b" not in content
    assert len(content) < 1500


@pytest.mark.parametrize("host", OURS)
async def test_addresses_and_localhost_need_no_setting(gateway, host):
    assert await status(gateway, "GET /health HTTP/1.1", f"Host: {host}") == 200


async def test_named_hosts_are_served_and_a_pattern_stands_for_one_label(served, serve_gateway):
    async with serve_gateway(served.address, allowed_hosts=("TTS.example", "*.apps.example")) as gateway:
        expected = {
            "tts.example": 200,
            "Tts.Example.:8000": 200,
            "a.tts.example": 421,
            "one.apps.example": 200,
            "apps.example": 421,
            "one.two.apps.example": 421,
            "evil.example": 421,
        }
        found = {host: await status(gateway, "GET / HTTP/1.1", f"Host: {host}") for host in expected}
        assert found == expected


async def test_a_star_switches_the_check_off_and_the_start_says_so(served, serve_gateway, caplog):
    async with serve_gateway(served.address, allowed_hosts=("*",)) as gateway:
        assert await status(gateway, "GET / HTTP/1.1", "Host: evil.example") == 200
    assert "allowed hosts: *" in caplog.text
    caplog.clear()
    async with serve_gateway(served.address, allowed_hosts=("tts.example",)):
        assert "allowed hosts" not in caplog.text


async def test_requests_need_one_host_unless_they_are_of_http_1_0(gateway):
    assert await status(gateway, "GET /health HTTP/1.1", "Host: localhost", "Host: evil.example") == 400
    assert await status(gateway, "GET /health HTTP/1.1") == 400
    assert await status(gateway, "GET /health HTTP/1.0") == 200  # as HAProxy's checks
    assert await status(gateway, "GET /health HTTP/1.0", "Host: evil.example") == 421


async def test_the_host_of_a_request_line_counts(gateway):
    assert await status(gateway, "GET http://evil.example/health HTTP/1.1", "Host: localhost") == 421
    assert await status(gateway, "GET http://user@localhost/health HTTP/1.1", "Host: localhost") == 421
    assert await status(gateway, "GET http://evil.example/health HTTP/1.0") == 421
    for line in ("http://localhost/health", "HTTP://127.0.0.1:80/health?x=http://evil.example", "http://localhost/"):
        assert await status(gateway, f"GET {line} HTTP/1.1", "Host: localhost") == 200
    assert await status(gateway, "GET http://localhost HTTP/1.1", "Host: localhost") == 200


@pytest.mark.parametrize("name", ["X-Forwarded-Host", "Forwarded", "X-Original-Host", "X-Host"])
async def test_other_headers_name_no_host(gateway, name):
    assert await status(gateway, "GET / HTTP/1.1", "Host: evil.example", f"{name}: localhost") == 421


async def test_a_websocket_of_a_rebound_name_is_refused_with_the_remedy_and_a_line_of_the_log(gateway, caplog):
    caplog.set_level(logging.INFO, "voxcpm_gateway")
    code, headers, content = await refused_socket(gateway, "evil.example", "http://evil.example")
    assert code == 421
    assert b"http.allowed_hosts" in content
    [line] = [str(record.msg) for record in caplog.records if record.name == "voxcpm_gateway"]
    assert " method=GET route=- status=421 code=host_not_allowed " in line
    assert f"id={headers['x-request-id']} " in line
    assert 'requests_total{route="other",status="421"} 1.0' in (await gateway.http.get("/metrics")).text


# ---- origins


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost", "http://localhost:80"),
        ("localhost:80", "http://localhost"),
        ("localhost:443", "https://localhost"),
        ("localhost", "https://localhost:443"),
        ("LOCALHOST:8000", "http://localhost:8000"),
        ("localhost.:8000", "http://localhost:8000"),
        ("[::1]", "http://[0:0::1]:80"),
        ("tts.example", "https://tts.example"),  # behind a proxy with TLS
        ("tts.example:8443", "https://TTS.example:8443"),
    ],
)
async def test_the_own_page_may_call_however_its_port_is_written(served, serve_gateway, host, origin):
    async with serve_gateway(served.address, allowed_hosts=("tts.example",)) as gateway:
        assert await status(gateway, "GET /v1/models HTTP/1.1", f"Host: {host}", f"Origin: {origin}") == 200
        address, port = gateway.address
        socket = connect(f"ws://{host}/v1/audio/stream", host=address, port=port, origin=origin, **DIRECT)
        async with socket as opened:
            await opened.close()


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8000", "http://localhost"),
        ("localhost", "http://localhost:443"),
        ("localhost:80", "https://localhost"),
        ("localhost:8000", "http://localhost:3000"),
        ("localhost", "tauri://localhost"),
        ("localhost", "null"),
        ("localhost", "http://localhost.evil.example"),
        ("localhost", "http://user@localhost"),
        ("localhost", "http://localhost/"),
        ("localhost", "localhost"),
        ("localhost", ""),
        ("localhost", "http://"),
    ],
)
async def test_pages_of_other_ports_schemes_and_of_none_are_refused(gateway, host, origin):
    code, _, content = await answer(gateway, "GET /v1/models HTTP/1.1", f"Host: {host}", f"Origin: {origin}")
    assert code == 403
    assert json.loads(content)["error"]["code"] == "origin_not_allowed"
    assert b"http.allowed_origins" in content
    code, _, content = await refused_socket(gateway, host, origin)
    assert code == 403
    assert b"http.allowed_origins" in content


async def test_null_is_the_origin_of_no_page_in_particular(served, serve_gateway):
    with pytest.raises(ValueError, match="not the origin of a web page"):
        async with serve_gateway(served.address, allowed_origins=("null",)):
            pass
    async with serve_gateway(served.address, allowed_origins=("*",)) as gateway:
        code, headers, _ = await answer(gateway, "GET /v1/models HTTP/1.1", "Host: localhost", "Origin: null")
    assert (code, headers["access-control-allow-origin"]) == (200, "*")


PREFLIGHT = (
    "OPTIONS /v1/audio/speech HTTP/1.1",
    "Host: localhost:8000",
    f"Origin: {PAGE}",
    "Access-Control-Request-Method: POST",
)
STAINLESS = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-os,x-stainless-retry-count"


@pytest.fixture(params=["https://app.example", "HTTPS://App.Example:443/", "*"])
async def open_gateway(request, served, serve_gateway):
    async with serve_gateway(served.address, allowed_origins=(request.param,)) as gateway:
        yield gateway


async def test_an_allowed_page_may_send_any_header(open_gateway):
    asks = (f"Access-Control-Request-Headers: {STAINLESS}", "Access-Control-Request-Private-Network: true")
    code, headers, _ = await answer(open_gateway, *PREFLIGHT, *asks)
    assert code == 200
    assert headers["access-control-allow-origin"] in (PAGE, "*")
    assert headers["access-control-allow-headers"] == STAINLESS
    assert headers["access-control-allow-private-network"] == "true"
    assert {"get", "post", "delete"} <= set(headers["access-control-allow-methods"].split(", "))
    code, headers, _ = await answer(open_gateway, *PREFLIGHT)
    assert code == 200
    assert "access-control-allow-private-network" not in headers
    assert "access-control-allow-headers" not in headers


async def test_a_preflight_of_another_page_or_to_another_host_is_refused(served, serve_gateway):
    async with serve_gateway(served.address, allowed_origins=(PAGE,)) as gateway:
        line, host, origin, wanted = PREFLIGHT
        assert await status(gateway, line, host, "Origin: https://other.example", wanted) == 403
        code, headers, _ = await answer(gateway, line, "Host: evil.example", origin, wanted)
        assert code == 421
        assert headers["access-control-allow-origin"] == PAGE  # so that the page can read the remedy


async def test_an_allowed_page_can_read_every_error(served, serve_gateway):
    async with serve_gateway(served.address, allowed_origins=(PAGE,), max_body_bytes=500) as gateway:
        gateway.state.client.voices = None  # a fault of the gateway
        headers = {"origin": PAGE}
        requests = [
            (200, gateway.http.get("/v1/models", headers=headers)),
            (400, gateway.http.post("/v1/audio/speech", json={"input": ""}, headers=headers)),
            (404, gateway.http.get("/nothing", headers=headers)),
            (405, gateway.http.get("/v1/audio/speech", headers=headers)),
            (413, gateway.http.post("/v1/audio/speech", json={"input": "x" * 600}, headers=headers)),
            (415, gateway.http.post("/v1/audio/speech", content="x", headers=headers | {"content-type": "text/xml"})),
            (421, gateway.http.get("/v1/models", headers=headers | {"host": "evil.example"})),
            (500, gateway.http.get("/v1/audio/voices", headers=headers)),
        ]
        for expected, request in requests:
            response = await request
            assert response.status_code == expected
            assert response.headers["access-control-allow-origin"] == PAGE
            assert response.headers["vary"] == "Origin"
            assert "x-request-id" in response.headers["access-control-expose-headers"]
        for headers in ({}, {"origin": "https://other.example"}):  # a cache must not give the page these responses
            response = await gateway.http.get("/nothing", headers=headers)
            assert response.headers["vary"] == "Origin"
            assert "access-control-allow-origin" not in response.headers


async def test_every_header_of_a_response_is_exposed(served, serve_gateway):
    readable = {"cache-control", "content-length", "content-type", "expires", "last-modified"}  # of any response
    hidden = {"date", "server", "vary", "connection", "transfer-encoding", "content-security-policy"}
    async with serve_gateway(served.address, allowed_origins=(PAGE,), max_bodies_bytes=200) as gateway:
        headers = {"origin": PAGE}
        responses = [
            await gateway.http.request(method, path, headers=headers)
            for path in openapi.document()["paths"]
            for method in ("GET", "POST", "DELETE")
        ]
        for body in ({"target_text": "Hello."}, {"target_text": "x" * 300}):
            responses.append(await gateway.http.post("/generate", json=body, headers=headers))
        assert {response.status_code for response in responses} >= {200, 400, 404, 405, 503}
        for response in responses:
            exposed = set(response.headers["access-control-expose-headers"].split(", "))
            others = {name for name in response.headers if not name.startswith("access-control-")}
            assert others - readable - hidden <= exposed
