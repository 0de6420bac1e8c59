"""Heads of requests: those that are too large or no HTTP, and those that never end."""

import asyncio
import logging

import pytest
from support.hostile.raw_http import connected, head, post
from support.servers.waiting import until

pytestmark = pytest.mark.thorough

MAX_HEAD, MAX_HEADERS, MAX_TARGET = 65536, 128, 8192
PATH = "/v1/audio/stream"
HANDSHAKE = (
    *("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
LINES = {
    "POST": ("POST /v1/audio/speech HTTP/1.1", ("Content-Length: 0", "Content-Type: application/json")),
    "GET": ("GET /v1/models HTTP/1.1", ()),
    "handshake": (f"GET {PATH} HTTP/1.1", HANDSHAKE),
}
LEAST = {"POST": 400, "GET": 200, "handshake": 101}  # the statuses of heads that are read; the POST has no body


def filled(line: str, headers: tuple[str, ...], size: int) -> bytes:
    """A head of so many bytes."""
    rest = size - len(head(line, *headers, "X-Filling: "))
    return head(line, *headers, f"X-Filling: {'x' * rest}")


@pytest.mark.parametrize("kind", LINES)
async def test_a_head_of_64_kib_is_read_and_a_larger_one_is_431_and_closed(gateway, kind):
    line, headers = LINES[kind]
    for size, status in ((MAX_HEAD, LEAST[kind]), (MAX_HEAD + 1, 431), (100_000, 431)):
        async with connected(gateway.address) as connection:
            request = filled(line, headers, size)
            assert len(request) == size
            connection.send(request)
            if status == 101:
                await connection.until(b"HTTP/1.1 101 ")
                continue
            answer = await connection.answer(line.partition(" ")[0])
            assert answer.status == status, answer.body
            if status == 431:
                assert answer.error["code"] == "headers_too_large"
                assert str(MAX_HEAD) in answer.error["message"]
                assert answer.headers["connection"] == "close"
                assert answer.headers["x-request-id"]
                assert await connection.rest() == b""


@pytest.mark.parametrize("kind", LINES)
async def test_a_head_that_grows_without_end_is_431_before_it_is_complete(gateway, kind):
    line, headers = LINES[kind]
    async with connected(gateway.address) as connection:
        connection.send(head(line, *headers)[:-2], b"X-Filling: ", b"x" * (MAX_HEAD + 1))
        answer = await connection.answer(line.partition(" ")[0])
        assert answer.status == 431
        assert await connection.rest() == b""


@pytest.mark.parametrize("kind", LINES)
async def test_more_headers_than_the_limit_are_431(gateway, kind):
    line, headers = LINES[kind]
    for count, status in ((MAX_HEADERS, LEAST[kind]), (MAX_HEADERS + 1, 431), (5000, 431)):
        more = [f"X-{number}: 1" for number in range(count - len(headers) - 1)]  # and the host
        async with connected(gateway.address) as connection:
            connection.send(head(line, *headers, *more))
            if status == 101:
                await connection.until(b"HTTP/1.1 101 ")
                continue
            answer = await connection.answer(line.partition(" ")[0])
            assert answer.status == status
            if status == 431:
                assert f"the limit is {MAX_HEADERS}" in answer.error["message"] or count == 5000
                assert await connection.rest() == b""


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("size", [MAX_TARGET + 1, 20_000, 100_000])
async def test_a_long_address_is_414(gateway, kind, size):
    line, headers = LINES[kind]
    method, target, version = line.split()
    target += "?q=" + "q" * (size - len(target) - 3)
    for request in (head(f"{method} {target} {version}", *headers), f"{method} {target}{'x' * 32}".encode()):
        async with connected(gateway.address) as connection:
            connection.send(request)
            answer = await connection.answer(method)
            assert answer.status == 414
            assert answer.error["code"] == "uri_too_long"
            assert await connection.rest() == b""


async def test_an_address_of_the_limit_is_read(gateway):
    async with connected(gateway.address) as connection:
        connection.send(head(f"GET {'/health?q='.ljust(MAX_TARGET, 'q')} HTTP/1.1"))
        assert (await connection.answer("GET")).status == 200


NO_HTTP = {
    "words": (b"hello there\r\n\r\n", 400),
    "TLS": (bytes.fromhex("16030100f1010000ed0303"), 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "HTTP/3": (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "two lengths": (head("POST / HTTP/1.1", "Content-Length: 1", "Content-Length: 2"), 400),
    "a wrong length": (head("POST / HTTP/1.1", "Content-Length: -1"), 400),
    "another coding": (head("POST / HTTP/1.1", "Transfer-Encoding: gzip"), 501),
    "a control character": (head("GET / HTTP/1.1", "X: a\0b"), 400),
    "no chunk": (head("POST /v1/audio/speech HTTP/1.1", "Transfer-Encoding: chunked") + b"xyz\r\n\r\n", 400),
}


@pytest.mark.parametrize(("sent", "status"), NO_HTTP.values(), ids=NO_HTTP)
async def test_what_is_no_request_is_answered_logged_and_closed(gateway, caplog, sent, status):
    caplog.set_level(logging.INFO)
    async with connected(gateway.address) as connection:
        connection.send(sent)
        answer = await connection.answer()
        assert answer.status == status
        assert answer.error["type"] == ("server_error" if status > 500 else "invalid_request_error")
        assert await connection.rest() == b""
    lines = [str(record.msg) for record in caplog.records if record.name == "voxcpm_gateway"]
    assert any(f"status={status}" in line for line in lines)
    assert not any(record.exc_info or record.levelno > logging.WARNING for record in caplog.records)
    assert f'status="{status}"' in (await gateway.http.get("/metrics")).text


async def test_a_body_that_breaks_off_the_rules_during_its_answer_ends_the_connection_alone(gateway, served, caplog):
    served.pool.hold_after = 3
    async with connected(gateway.address) as connection:
        connection.send(post("/v1/audio/speech", {"input": "Hello there.", "response_format": "pcm"}))
        await connection.until(b"HTTP/1.1 200 ")
        connection.send(b"\0\0\0 no request\r\n\r\n")
        served.pool.release()
        assert b"HTTP/1.1 400 " in await connection.rest()
    assert not any(record.exc_info for record in caplog.records)


WAITING = {
    "nothing": b"",
    "half a line": b"GET /he",
    "half a head": head("GET /health HTTP/1.1")[:-2],
    "half a handshake": head(f"GET {PATH} HTTP/1.1", *HANDSHAKE)[:-2],
    "half an offer": head("POST /v1/audio/speech HTTP/1.1", "Connection: Upgrade", "Upgrade: h2c")[:-2],
    "empty lines": b"\r\n\r\n",
}


@pytest.mark.parametrize("start", WAITING.values(), ids=WAITING)
async def test_a_connection_without_a_whole_head_is_cut_off(served, serve_gateway, start):
    async with serve_gateway(served.address, head_seconds=0.2) as gateway, connected(gateway.address) as connection:
        connection.send(start)
        assert await connection.rest() == b""


@pytest.mark.parametrize("start", [start for start in WAITING.values() if start.strip()])
@pytest.mark.parametrize("pipelined", [True, False])
async def test_a_head_that_does_not_end_is_cut_off_after_other_requests(served, serve_gateway, start, pipelined):
    async with serve_gateway(served.address, head_seconds=0.2) as gateway, connected(gateway.address) as connection:
        connection.send(head("GET /health HTTP/1.1"), start if pipelined else b"")
        assert (await connection.answer("GET")).status == 200
        connection.send(b"" if pipelined else start)
        assert await connection.rest() == b""


async def test_bytes_that_drip_do_not_extend_the_time(served, serve_gateway):
    async with serve_gateway(served.address, head_seconds=0.3) as gateway, connected(gateway.address) as connection:
        connection.send(b"GET /health HTTP/1.1\r\n")

        async def drip() -> None:
            while True:
                connection.send(b"X: y\r\n")
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        try:
            assert await connection.rest() == b""
        except ConnectionResetError:
            pass
        finally:
            dripping.cancel()


async def test_a_body_that_nobody_reads_and_that_does_not_end_is_cut_off(served, serve_gateway):
    async with serve_gateway(served.address, head_seconds=0.3) as gateway, connected(gateway.address) as connection:
        connection.send(head("POST /no/such/address HTTP/1.1", "Content-Length: 1000"), b"x" * 10)
        assert (await connection.answer()).status == 404
        assert await connection.rest() == b""


async def test_a_connection_without_requests_outlives_the_limit_of_heads(served, serve_gateway):
    async with serve_gateway(served.address, head_seconds=0.2) as gateway, connected(gateway.address) as connection:
        connection.send(head("GET /health HTTP/1.1"))
        assert (await connection.answer("GET")).status == 200
        async with connected(gateway.address) as other:
            assert await other.rest() == b""  # the limit has passed
        connection.send(head("GET /health HTTP/1.1"))
        assert (await connection.answer("GET")).status == 200


async def test_beyond_the_limit_of_waiting_connections_the_oldest_is_closed_and_the_log_says_so(
    served, serve_gateway, caplog
):
    async with serve_gateway(served.address, max_waiting=3) as gateway:
        served.pool.hold_after = 3
        async with connected(gateway.address) as speaking, connected(gateway.address) as first:
            speaking.send(post("/v1/audio/speech", {"input": "Hello there.", "response_format": "pcm"}))
            await speaking.until(b"HTTP/1.1 200 ")
            first.send(head(f"GET {PATH} HTTP/1.1", *HANDSHAKE)[:-2])
            others = [await asyncio.open_connection(*gateway.address) for _ in range(3)]
            assert await first.rest() == b""
            await until(lambda: "more than 3 connections wait" in caplog.text)
            served.pool.release()
            await speaking.until(b"\r\n0\r\n\r\n")
            for _, writer in others:
                writer.transport.abort()
        assert (await gateway.speak("Hello.")).status_code == 200


async def test_empty_lines_before_a_request_and_addresses_for_a_proxy_are_read(gateway):
    async with connected(gateway.address) as connection:
        for line in ("GET http://localhost/health HTTP/1.1", "GET HTTP://localhost:80/health?x HTTP/1.1"):
            connection.send(b"\r\n", head(line))
            assert (await connection.answer("GET")).status == 200
        connection.send(head("GET https://localhost HTTP/1.1"))
        assert (await connection.answer("GET")).headers["content-type"].startswith("text/html")
