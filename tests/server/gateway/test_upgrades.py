"""Requests that offer another protocol: only the handshake of a WebSocket at its address is taken."""

import json

import pytest
from support.hostile.raw_http import connected, head, post
from support.servers.uploads import recording
from websockets.frames import Frame, Opcode

SPEECH = {"input": "Hello there.", "response_format": "pcm"}
PATH = "/v1/audio/stream"
OFFERS = {
    "h2c": ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB"),
    "h2c alone": ("Connection: Upgrade", "Upgrade: h2c"),
    "websocket": ("Connection: Upgrade", "Upgrade: websocket"),
    "a whole handshake": (
        *("Connection: keep-alive, Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13"),
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ),
    "TLS": ("Connection: upgrade", "Upgrade: TLS/1.0, HTTP/2.0"),
}
HANDSHAKE = OFFERS["a whole handshake"]


@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
async def test_a_post_with_an_offer_is_served_with_its_body_and_the_connection_stays(gateway, offer):
    async with connected(gateway.address) as connection:
        for path in ("/v1/audio/speech", "/generate"):
            body = SPEECH if path != "/generate" else {"target_text": "Hello there.", "response_format": "pcm"}
            connection.send(post(path, body, *offer))
            answer = await connection.answer()
            assert answer.status == 200
            assert len(answer.body) > 1000
        connection.send(head("GET /v1/models HTTP/1.1", *offer))
        assert (await connection.answer("GET")).status == 200


@pytest.mark.parametrize("offer", [OFFERS["h2c"], OFFERS["websocket"]], ids=["h2c", "websocket"])
async def test_a_body_in_pieces_after_an_offer_is_read_whole(gateway, offer):
    audio = recording()
    parts = (("name", b"offered"), ("consent", b"yes"), ("audio_sample", audio))
    files = {"audio_sample": '; filename="a.wav"'}
    form = b"".join(
        b'--x\r\ncontent-disposition: form-data; name="%s"%s\r\n\r\n%s\r\n'
        % (name.encode(), files.get(name, "").encode(), value)
        for name, value in parts
    )
    async with connected(gateway.address) as connection:
        kinds = ("Content-Type: multipart/form-data; boundary=x", "Transfer-Encoding: chunked")
        connection.send(head("POST /v1/audio/voices HTTP/1.1", *kinds, *offer))
        body = form + b"--x--\r\n"
        for start in range(0, len(body), 30_000):
            piece = body[start : start + 30_000]
            connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
            await connection.writer.drain()
        connection.send(b"0\r\n\r\n")
        answer = await connection.answer()
        assert answer.status == 200, answer.body
        assert json.loads(answer.body)["name"] == "offered"


async def test_a_handshake_at_another_address_is_a_plain_request(gateway):
    async with connected(gateway.address) as connection:
        for path, status in (("/v1/models", 200), ("/health", 200), ("/v1/audio/streams", 404)):
            connection.send(head(f"GET {path} HTTP/1.1", *HANDSHAKE))
            assert (await connection.answer("GET")).status == status


MESSAGES = ({"type": "config"}, {"type": "text", "text": "Hello."}, {"type": "finish"})
SUMMARY = b'"type": "summary"'
FRAMES = [Frame(Opcode.TEXT, json.dumps(one).encode()).serialize(mask=True) for one in MESSAGES]


async def test_messages_may_follow_a_handshake_at_once(gateway):
    async with connected(gateway.address) as connection:
        connection.send(head(f"GET {PATH} HTTP/1.1", *HANDSHAKE, "Content-Length: 0"), *FRAMES)
        assert (await connection.until(SUMMARY)).startswith(b"HTTP/1.1 101 ")


async def test_a_handshake_waits_for_the_answer_to_the_request_before_it(gateway):
    async with connected(gateway.address) as connection:
        connection.send(post("/v1/audio/speech", SPEECH), head(f"GET {PATH} HTTP/1.1", *HANDSHAKE), *FRAMES)
        assert (await connection.answer()).status == 200
        assert (await connection.until(SUMMARY)).startswith(b"HTTP/1.1 101 ")


FAULTS = {
    "no offer": ((), 426),
    "another protocol": (OFFERS["h2c"], 426),
    "two protocols": (("Connection: Upgrade", "Upgrade: websocket, h2c"), 426),
    "no version": ((HANDSHAKE[0], HANDSHAKE[1], HANDSHAKE[3]), 426),
    "an old version": ((HANDSHAKE[0], HANDSHAKE[1], HANDSHAKE[3], "Sec-WebSocket-Version: 8"), 426),
    "no key": (HANDSHAKE[:3], 400),
    "a short key": ((*HANDSHAKE[:3], "Sec-WebSocket-Key: AAAA"), 400),
    "two keys": ((*HANDSHAKE, HANDSHAKE[3]), 400),
    "a wrong extension": ((*HANDSHAKE, "Sec-WebSocket-Extensions: ;;"), 400),
    "a body": ((*HANDSHAKE, "Content-Length: 5"), 400),
    "a body in chunks": ((*HANDSHAKE, "Transfer-Encoding: chunked"), 400),
}


@pytest.mark.parametrize(("headers", "status"), FAULTS.values(), ids=FAULTS)
async def test_a_handshake_that_cannot_succeed_is_answered_and_closed(gateway, headers, status):
    async with connected(gateway.address) as connection:
        connection.send(head(f"GET {PATH} HTTP/1.1", *headers))
        answer = await connection.answer("GET")
        assert answer.status == status
        assert answer.error["message"]
        assert "close" in answer.headers["connection"]
        if status == 426:
            assert answer.headers["upgrade"] == "websocket"
            assert answer.headers["sec-websocket-version"] == "13"
        assert await connection.rest() == b""


async def test_a_handshake_over_http_1_0_is_answered_and_closed(gateway):
    async with connected(gateway.address) as connection:
        connection.send(head(f"GET {PATH} HTTP/1.0", *HANDSHAKE))
        assert (await connection.answer("GET")).status == 426
        assert await connection.rest() == b""


async def test_a_post_to_the_address_of_the_websocket_names_its_method(gateway):
    async with connected(gateway.address) as connection:
        connection.send(post(PATH, {}, *HANDSHAKE))
        answer = await connection.answer()
        assert answer.status == 405
        assert answer.headers["allow"] == "GET, HEAD"


async def test_a_handshake_may_have_headers_in_other_scripts(gateway):
    async with connected(gateway.address) as connection:
        connection.send(head(f"GET {PATH} HTTP/1.1", *HANDSHAKE, "X-Name: Zo\xeb"), *FRAMES)
        await connection.until(SUMMARY)
