"""HTTP as its standard has it: old versions, expectations, methods, several requests at once, and half-closed ends."""

import asyncio
import json
import socket

import pytest
from support.hostile.raw_http import connected, head, post
from support.servers.waiting import until

SPEECH = {"input": "Hello there.", "response_format": "pcm"}
LONG = {"input": "Hello there, this is a long text. " * 20, "response_format": "pcm"}


# ------------------------------------------------------------ HTTP/1.0


@pytest.mark.parametrize("form", ["audio", "sse"])
async def test_http_1_0_gets_a_stream_without_chunks_that_ends_with_the_connection(gateway, form):
    expected = await gateway.speak("Hello there.", response_format="pcm", seed=7)
    async with connected(gateway.address) as connection:
        request = SPEECH | {"model": "tts-1", "seed": 7, "stream_format": form}
        connection.send(post("/v1/audio/speech", request, "Connection: keep-alive", version="1.0"))
        answer = await connection.rest()
    first, _, body = answer.partition(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in first.lower()
    assert b"connection: close" in first.lower()
    if form == "audio":
        assert body == expected.content
    else:
        assert body.startswith(b"data: {")
        assert body.endswith(b"}\n\n")


async def test_http_1_0_gets_whole_bodies_with_their_length(gateway):
    for request in (head("GET /health HTTP/1.0"), post("/generate_blocking", {"target_text": "Hi."}, version="1.0")):
        async with connected(gateway.address) as connection:
            connection.send(request)
            first, _, body = (await connection.rest()).partition(b"\r\n\r\n")
            assert first.startswith(b"HTTP/1.1 200 ")
            assert f"content-length: {len(body)}".encode() in first.lower()


async def test_a_stream_over_http_1_0_that_fails_is_reset_and_does_not_end_as_if_it_were_whole(gateway, served):
    served.pool.failures["Hello there."] = (5, RuntimeError("secret"))
    served.pool.hold_after = 3
    async with connected(gateway.address) as connection:
        connection.send(post("/v1/audio/speech", SPEECH, version="1.0"))
        await connection.until(b"HTTP/1.1 200 ")
        served.pool.release()
        with pytest.raises(ConnectionResetError):
            await connection.rest()


# ------------------------------------------------------------ expectations and methods


async def test_a_client_that_waits_for_100_gets_it_before_its_body_and_only_once(gateway):
    body = json.dumps(SPEECH).encode()
    async with connected(gateway.address) as connection:
        sizes = ("Content-Type: application/json", f"Content-Length: {len(body)}")
        connection.send(head("POST /v1/audio/speech HTTP/1.1", *sizes, "Expect: 100-continue"))
        assert await connection.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.send(body)
        assert (await connection.answer()).status == 200
        connection.send(head("GET /health HTTP/1.1"))
        assert (await connection.answer("GET")).status == 200


@pytest.mark.parametrize("size", [100, 10_000_000])
async def test_a_client_that_waits_for_100_in_vain_gets_the_error_and_the_connection_ends(gateway, size):
    async with connected(gateway.address) as connection:
        sizes = ("Content-Type: text/plain", f"Content-Length: {size}")
        connection.send(head("POST /v1/audio/speech HTTP/1.1", *sizes, "Expect: 100-continue"))
        answer = await connection.answer()
        assert answer.status == 415
        assert answer.headers["connection"] == "close"
        assert await connection.rest() == b""


async def test_head_has_the_headers_of_get_without_its_body(gateway):
    async with connected(gateway.address) as connection:
        for path in ("/", "/health", "/v1/models", "/openapi.json", "/metrics", "/no/such/address"):
            connection.send(head(f"GET {path} HTTP/1.1"), head(f"HEAD {path} HTTP/1.1"))
            get, of_head = await connection.answer("GET"), await connection.answer("HEAD")
            assert of_head.status == get.status
            assert of_head.body == b""
            assert of_head.headers["content-type"] == get.headers["content-type"]
            if path != "/metrics":
                assert int(of_head.headers["content-length"]) == len(get.body)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/audio/speech", "POST"),
        ("HEAD", "/generate", "POST"),
        ("PUT", "/v1/audio/voices", "GET, HEAD, POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("PATCH", "/v1/audio/voices/ref_1", "DELETE"),
        ("DELETE", "/health", "GET, HEAD"),
        ("POST", "/v1/audio/stream", "GET, HEAD"),
        ("BREW", "/", "GET, HEAD"),
    ],
)
async def test_a_method_that_an_address_lacks_is_405_with_those_that_it_has(gateway, method, path, allowed):
    async with connected(gateway.address) as connection:
        connection.send(head(f"{method} {path} HTTP/1.1"))
        answer = await connection.answer(method)
        assert answer.status == 405
        assert answer.headers["allow"] == allowed


# ------------------------------------------------------------ several requests


async def test_requests_that_arrive_together_are_answered_in_order(gateway):
    requests = [
        post("/v1/audio/speech", SPEECH),
        head("GET /health HTTP/1.1"),
        post("/v1/audio/speech", {"input": ""}),
        head("POST /no/such/address HTTP/1.1", "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n",
        post("/generate", {"target_text": "Hello."}, "Connection: Upgrade", "Upgrade: h2c"),
        head("GET /v1/models HTTP/1.1", "Connection: close"),
        head("GET /health HTTP/1.1"),
    ]
    async with connected(gateway.address) as connection:
        connection.send(*requests)
        assert [(await connection.answer()).status for _ in range(6)] == [200, 200, 400, 404, 200, 200]
        assert await connection.rest() == b""  # nothing is read after `close`


# ------------------------------------------------------------ ends


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("path", ["/v1/audio/speech", "/generate_blocking", "/no/such/address"])
async def test_a_client_that_half_closes_gets_its_whole_answer(gateway, path, version):
    body = {"target_text": "Hello there."} if path.startswith("/generate") else SPEECH
    async with connected(gateway.address) as connection:
        connection.send(post(path, body, version=version))
        connection.half_close()
        answer = await connection.answer()
        assert answer.status == (404 if "such" in path else 200)
        assert len(answer.body) > 100
        assert await connection.rest() == b""


async def test_a_client_that_half_closes_gets_the_answers_to_all_its_requests(gateway):
    async with connected(gateway.address) as connection:
        connection.send(post("/v1/audio/speech", SPEECH), head("GET /health HTTP/1.1"), post("/generate", {}))
        connection.half_close()
        assert [(await connection.answer()).status for _ in range(3)] == [200, 200, 400]
        assert await connection.rest() == b""


async def test_a_client_that_half_closes_while_it_waits_or_hears_gets_all(gateway, served):
    for _ in range(4):
        await served.pool.slots.acquire()
    async with connected(gateway.address) as connection:
        connection.send(post("/v1/audio/speech", SPEECH))
        await until(lambda: served.pool.waiting)
        connection.half_close()
        served.pool.hold_after = 3
        for _ in range(4):
            served.pool.slots.release()
        await connection.until(b"HTTP/1.1 200 ")
        served.pool.release()
        await connection.until(b"\r\n0\r\n\r\n")


async def test_a_client_that_closes_after_it_half_closed_cancels_its_stream(gateway, served):
    served.pool.hold_after = 3
    async with connected(gateway.address) as connection:
        connection.send(post("/v1/audio/speech", LONG))
        connection.half_close()
        await connection.until(b"HTTP/1.1 200 ")
    served.pool.step_seconds = 0.01
    served.pool.release()
    await served.idle()
    assert served.pool.steps < len(LONG["input"])


@pytest.mark.parametrize(
    "sent",
    [
        head("POST /v1/audio/speech HTTP/1.1", "Content-Type: application/json", "Content-Length: 100") + b'{"input',
        head("POST /v1/audio/speech HTTP/1.1", "Transfer-Encoding: chunked") + b"5\r\nabc",
        head("GET /health HTTP/1.1")[:-2],
        b"GET /he",
    ],
)
async def test_half_a_request_before_a_half_close_is_400(gateway, sent):
    async with connected(gateway.address) as connection:
        connection.send(sent)
        connection.half_close()
        answer = await connection.answer()
        assert answer.status == 400
        assert "ended before" in answer.error["message"]
        assert await connection.rest() == b""


async def test_an_answer_survives_the_body_that_is_still_on_its_way(gateway):
    """The kernel would reset the connection, and a client that sends before it reads would lose the answer."""
    size = 6_000_000
    sizes = ("Content-Type: text/plain", f"Content-Length: {size}")
    loop = asyncio.get_running_loop()
    with socket.create_connection(gateway.address) as opened:
        opened.setblocking(False)
        await loop.sock_sendall(opened, head("POST /v1/audio/speech HTTP/1.1", *sizes))
        await loop.sock_sendall(opened, bytes(size))
        answer = b""
        while data := await loop.sock_recv(opened, 65536):
            answer += data
    assert answer.startswith(b"HTTP/1.1 415 ")
    assert b"connection: close" in answer


async def test_a_short_body_that_nobody_reads_keeps_the_connection_open(gateway):
    async with connected(gateway.address) as connection:
        connection.send(head("POST /no/such/address HTTP/1.1", "Content-Length: 1000"))
        answer = await connection.answer()
        assert answer.status == 404
        assert "connection" not in answer.headers
        connection.send(b"x" * 1000, head("GET /health HTTP/1.1"))
        assert (await connection.answer("GET")).status == 200
