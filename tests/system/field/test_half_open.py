"""500 connections with half a handshake, beside callers who speak."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from support.clients.websocket_options import DIRECT
from support.servers.threaded_gateways import gateway
from support.servers.waiting import HANG_SECONDS, wait_until
from websockets.sync.client import connect

COUNT = 500
SPEECH = {"input": "The train arrived ten minutes late.", "voice": "miles", "seed": 7, "response_format": "pcm"}
HANDSHAKE = (
    b"GET /v1/audio/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
STARTS = (
    b"",
    HANDSHAKE,
    HANDSHAKE + b"X-Filling: " + b"x" * 60_000,
    b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Le",
)


def connected(host: str) -> socket.socket:
    address, _, port = host.partition(":")
    return socket.create_connection((address, int(port)), HANG_SECONDS)


def speech(host: str) -> int:
    """The bytes of the speech of a gateway. Their values differ by rounding when others speak at the same time."""
    request = urllib.request.Request(
        f"http://{host}/v1/audio/speech", json.dumps(SPEECH).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=HANG_SECONDS) as response:
        return len(response.read())


@contextmanager
def half_open(host: str) -> Iterator[list[socket.socket]]:
    """Connections that begin in different ways, and then send nothing."""
    with ExitStack() as stack:
        opened = []
        for number in range(COUNT):
            opened.append(stack.enter_context(connected(host)))
            opened[-1].sendall(STARTS[number % len(STARTS)])
        yield opened


def ended(connection: socket.socket) -> bool:
    """True when the gateway has closed a connection without a word."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:  # bytes that it had not read
        return True


@pytest.fixture(scope="module")
def expected(site) -> int:
    return speech(site.host)


def test_half_open_handshakes_do_not_hurt_those_who_speak(site, expected):
    found: list[int] = []
    speaking = threading.Thread(target=lambda: found.extend(speech(site.host) for _ in range(2)))
    speaking.start()
    with half_open(site.host), connect(f"ws://{site.host}/v1/audio/stream", **DIRECT) as stream:
        for message in ({"type": "config", "voice": "miles"}, {"type": "text", "text": "Hello."}, {"type": "finish"}):
            stream.send(json.dumps(message))
        assert any(isinstance(one, bytes) for one in stream)
        speaking.join(HANG_SECONDS)
    assert found == [expected] * 2


def test_half_open_handshakes_are_closed_while_others_speak(site, expected):
    with gateway(site.server.address, head_seconds=2.0) as host, half_open(host) as opened:
        assert speech(host) == expected
        assert all(map(ended, opened))


def test_more_of_them_than_the_limit_close_the_oldest(site, expected, caplog):
    with gateway(site.server.address, max_waiting=COUNT // 2) as host, half_open(host) as opened:
        assert all(map(ended, opened[: COUNT // 2]))
        assert speech(host) == expected
    assert f"more than {COUNT // 2} connections wait without a whole request" in caplog.text


def test_a_client_that_half_closes_gets_all_and_one_that_closes_frees_its_slot(site, expected):
    body = json.dumps(SPEECH).encode()
    sizes = f"Content-Type: application/json\r\nContent-Length: {len(body)}"
    request = f"POST /v1/audio/speech HTTP/1.0\r\nHost: localhost\r\n{sizes}\r\n\r\n".encode() + body
    with connected(site.host) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answer:
            assert len(answer.read().partition(b"\r\n\r\n")[2]) == expected
    before = gone(site.url)
    with connected(site.host) as connection:
        connection.sendall(request)
    wait_until(lambda: gone(site.url) == before + 1)


def gone(url: str) -> float:
    """The number of clients that the gateway has counted as gone."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=HANG_SECONDS) as page:
        counted = re.findall(r"^voxcpm_gateway_clients_gone_total\{.*\} (\S+)$", page.read().decode(), re.MULTILINE)
    return sum(map(float, counted))
