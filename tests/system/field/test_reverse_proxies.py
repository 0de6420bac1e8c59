"""The page, requests and the WebSocket behind nginx and Caddy with the lines of docs/http.md, and those of Traefik."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from support.servers.reverse_proxies import NAME, ReverseProxy, caddy, documented, nginx, reverse_proxy
from support.servers.threaded_gateways import gateway
from support.servers.waiting import HANG_SECONDS, wait_until

LONG = "The children played in the snow until dark, and nobody called them in. " * 20
JSON = "application/json"
BASIC = "Basic " + base64.b64encode(b"ada:secret").decode()


COMMANDS = pytest.mark.parametrize("command", [nginx, caddy], ids=["nginx", "caddy"])


@pytest.fixture(scope="module", params=[nginx, caddy], ids=["nginx", "caddy"])
def proxy(request, site, tmp_path_factory) -> Iterator[ReverseProxy]:
    folder = tmp_path_factory.mktemp("proxy")
    with (
        gateway(site.server.address, allowed_hosts=(NAME,)) as address,
        reverse_proxy(request.param, folder, address) as running,
    ):
        yield running


def speech(**fields: object) -> bytes:
    return json.dumps({"input": "Good morning.", "voice": "miles", "response_format": "pcm", **fields}).encode()


@pytest.mark.parametrize("path", ["/", "/page/main.js", "/page/model.json", "/v1/audio/voices", "/docs/"])
def test_the_page_and_its_requests_are_served(proxy, path):
    status, body = proxy.request("GET", path, origin=proxy.origin)
    assert (status, bool(body)) == (200, True)


def test_the_page_speaks_over_its_websocket(proxy):
    with proxy.websocket("/v1/audio/stream") as socket:
        for message in ({"type": "config", "voice": "miles"}, {"type": "text", "text": "Good morning."}):
            socket.send(json.dumps(message))
        socket.send(json.dumps({"type": "finish"}))
        messages = list(socket)
    assert json.loads(messages[0])["type"] == "header"
    assert sum(len(message) for message in messages if isinstance(message, bytes)) > 20000
    assert json.loads(messages[-1])["type"] == "summary"


@COMMANDS
def test_each_part_of_a_response_passes_at_once(command, tmp_path):
    go_on = threading.Event()

    class Waiting(BaseHTTPRequestHandler):
        """Sends a second part when the first has arrived at the client."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"1\r\na\r\n")
            assert self.path == "/health" or go_on.wait(HANG_SECONDS)
            self.wfile.write(b"1\r\nb\r\n0\r\n\r\n")

    with ThreadingHTTPServer(("127.0.0.1", 0), Waiting) as upstream:
        threading.Thread(target=upstream.serve_forever).start()
        try:
            with reverse_proxy(command, tmp_path, f"127.0.0.1:{upstream.server_port}") as proxy:
                connection = proxy.connect()
                connection.request("GET", "/v1/models")
                response = connection.getresponse()
                assert response.read(1) == b"a"
                go_on.set()
                assert response.read() == b"b"
                connection.close()
        finally:
            go_on.set()
            upstream.shutdown()


def test_a_caller_who_goes_away_ends_its_stream(proxy, site):
    before = site.server.calls("Generate")
    connection = proxy.connect()
    connection.request("POST", "/v1/audio/speech", speech(input=LONG), {"content-type": JSON, "origin": proxy.origin})
    response = connection.getresponse()
    assert response.status == 200
    assert response.read(1000)
    assert site.server.calls("Generate") == before  # it is still speaking
    connection.close()
    response.close()
    wait_until(lambda: site.server.calls("Generate") > before)
    [line] = [line for line in site.server.log.splitlines() if " method=Generate " in line][before:]
    assert " code=CANCELLED " in line


def test_large_bodies_pass_whole_or_in_chunks(proxy):
    body = speech(input="x" * 3_000_000)
    chunks = {"transfer_encoding": "chunked", "content_type": JSON}
    parts = (body[start : start + 50_000] for start in range(0, len(body), 50_000))
    for sent in (
        proxy.request("POST", "/v1/audio/speech", body, content_type=JSON),
        proxy.request("POST", "/v1/audio/speech", parts, **chunks),
    ):
        status, answer = sent
        assert status == 400
        assert json.loads(answer)["error"]["code"] == "string_above_max_length"


def test_long_headers_and_passwords_for_the_proxy_pass(proxy):
    assert proxy.request("GET", "/v1/models", x_long="x" * 32768)[0] == 200
    status, audio = proxy.request(
        "POST", "/v1/audio/speech", speech(), content_type=JSON, authorization=BASIC, origin=proxy.origin
    )
    assert (status, len(audio) > 20000) == (200, True)


@pytest.mark.parametrize("path", ["/metrics", "/metrics/"])
def test_the_metrics_stay_inside(proxy, path):
    status, body = proxy.request("GET", path)
    assert status == 404
    assert b"voxcpm" not in body


def test_pages_of_other_origins_are_refused_behind_a_proxy_too(proxy):
    for origin in (f"https://{NAME}", "https://evil.example", "null"):
        assert proxy.request("GET", "/v1/models", origin=origin)[0] == 403
    status, body = proxy.request("GET", "/v1/models", host="evil.example")
    assert status == 421 or not body  # nginx passes it on, and Caddy has no such site


def test_the_lines_for_traefik_fit_together():
    routing, static = map(yaml.safe_load, documented("yaml"))
    [router] = routing["http"]["routers"].values()
    assert router["rule"] == f"Host(`{NAME}`) && !PathPrefix(`/metrics`)"
    assert router["entryPoints"] == list(static["entryPoints"])
    [server] = routing["http"]["services"][router["service"]]["loadBalancer"]["servers"]
    assert server == {"url": "http://127.0.0.1:8000"}
    assert static["entryPoints"]["websecure"]["transport"]["respondingTimeouts"] == {"readTimeout": "11m"}
