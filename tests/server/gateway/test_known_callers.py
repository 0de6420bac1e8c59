"""Callers without a valid key: nothing that they send is read beyond its begin, or parsed."""

import asyncio
import base64
import json
import logging

import pytest
from support.clients.websocket_options import DIRECT
from support.hostile.raw_http import connected, head, post
from support.servers.uploads import recording
from websockets.asyncio.client import connect

from voxcpm_gateway.requests import callers
from voxcpm_server.auth.keys import create, revoke

POSTS = (
    *("/v1/audio/speech", "/v1/audio/voices", "/generate", "/generate_blocking", "/generate_blocking_wav"),
    *("/encode_latents", "/add_prompt", "/add_reference", "/add_hifi"),
)
SPEECH = {"input": "Hello there.", "response_format": "pcm"}
KEYS = {"no key": (), "a wrong key": ("Authorization: Bearer voxcpm_000000000000_" + "x" * 43,)}


@pytest.fixture
async def file(tmp_path):
    return tmp_path / "keys.toml"


@pytest.fixture
async def key(file):
    return await asyncio.to_thread(create, "ada", file)


@pytest.fixture
async def keyed(key, file, serve_front, serve_gateway):
    """A gateway before a server that needs keys."""
    async with serve_front(server={"auth": {"keys": file}}) as served, serve_gateway(served.address) as gateway:
        yield gateway


@pytest.mark.parametrize("headers", KEYS.values(), ids=KEYS)
async def test_a_body_without_a_valid_key_is_refused_before_it_has_arrived(keyed, headers):
    length, kind = "Content-Length: 40000000", "Content-Type: multipart/form-data; boundary=x"
    for path in POSTS:
        for framing in ((length,), ("Transfer-Encoding: chunked",), (length, "Expect: 100-continue")):
            async with connected(keyed.address) as connection:
                connection.send(head(f"POST {path} HTTP/1.1", kind, *framing, *headers))
                answer = await connection.answer()
                assert answer.status == 401
                assert answer.error["code"] == "invalid_api_key"
                assert answer.headers["connection"] == "close"
                assert await connection.rest() == b""


@pytest.mark.parametrize("headers", KEYS.values(), ids=KEYS)
async def test_what_is_no_json_is_401_without_a_valid_key_and_400_or_415_with_one(keyed, key, headers):
    async with connected(keyed.address) as connection:
        for path in POSTS:
            connection.send(post(path, [1], *headers))
            assert (await connection.answer()).status == 401
            connection.send(post(path, [1], f"Authorization: Bearer {key}"))
            assert (await connection.answer()).status in (400, 415)


async def test_the_server_is_asked_once_for_many_requests_of_a_key(keyed, key, caplog):
    caplog.set_level(logging.INFO, "voxcpm_server")
    async with connected(keyed.address) as connection:
        for _ in range(3):
            connection.send(post("/v1/audio/speech", SPEECH, f"Authorization: Bearer {key}"))
            assert (await connection.answer()).status == 200
    methods = [word for record in caplog.records for word in str(record.msg).split() if word.startswith("method=")]
    assert methods.count("method=Generate") == 3
    assert methods.count("method=GetModelInfo") == 1


async def test_requests_at_once_share_the_question(keyed, key, caplog):
    caplog.set_level(logging.INFO, "voxcpm_server")
    headers = {"authorization": f"Bearer {key}"}
    body = SPEECH | {"input": ""}
    found = await asyncio.gather(
        *(keyed.http.post("/v1/audio/speech", json=body, headers=headers) for _ in range(8)),
        *(keyed.http.post("/v1/audio/speech", json=body) for _ in range(8)),
    )
    assert [one.status_code for one in found] == [400] * 8 + [401] * 8


async def test_a_key_that_is_known_is_asked_for_again_beside_its_requests(keyed, key, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "voxcpm_server")
    monkeypatch.setattr(callers, "ASK_SECONDS", 0.0)
    headers = {"authorization": f"Bearer {key}"}
    for _ in range(4):
        assert (await keyed.http.post("/v1/audio/speech", json=SPEECH, headers=headers)).status_code == 200
    lines = [str(record.msg) for record in caplog.records]
    assert sum("method=GetModelInfo" in line for line in lines) >= 2


async def test_a_revoked_key_speaks_no_more_though_it_is_known(keyed, key, file, monkeypatch):
    headers = {"authorization": f"Bearer {key}"}
    assert (await keyed.http.post("/v1/audio/speech", json=SPEECH, headers=headers)).status_code == 200
    monkeypatch.setattr("voxcpm_server.auth.watched_file.CHECK_SECONDS", 0.0)
    await asyncio.to_thread(revoke, "ada", file)
    assert (await keyed.http.post("/v1/audio/speech", json=SPEECH, headers=headers)).status_code == 401


async def test_a_server_without_keys_accepts_everybody(gateway, caplog):
    caplog.set_level(logging.INFO, "voxcpm_server")
    for number in range(3):
        headers = {"authorization": "Bearer sk-any"} if number else {}
        assert (await gateway.http.post("/v1/audio/speech", json=SPEECH, headers=headers)).status_code == 200
    assert sum("method=GetModelInfo" in str(record.msg) for record in caplog.records) == 2


# ------------------------------------------------------------ the WebSocket


async def closed(gateway, text: str, headers: dict[str, str]) -> int:
    """The code with which the gateway closes a socket after a first message."""
    address = "ws://{}:{}/v1/audio/stream".format(*gateway.address)
    async with connect(address, additional_headers=headers, max_size=None, **DIRECT) as socket:
        await socket.send(text)
        await socket.wait_closed()
        code = socket.protocol.close_code  # websockets 13 has it there alone
        assert code is not None
        return code


LARGE = {"prompt": {"audio": base64.b64encode(recording() * 20).decode(), "transcript": "Words."}}


async def test_a_socket_parses_no_first_message_without_a_valid_key(keyed, key):
    wrong = "voxcpm_000000000000_" + "x" * 43
    last = {"type": "config", **LARGE, "key": key}  # too far behind
    for text in ("no JSON", "[1]", "{", '{"type": "config"}', '{"key": ""}', json.dumps(last)):
        assert await closed(keyed, text, {}) == 4401, text[:40]
        assert await closed(keyed, text, {"authorization": f"Bearer {wrong}"}) == 4401
    for text in ("{}", '{"type": 1}', '{"type": "text", "x": 1}'):
        wrong_text = json.dumps({"key": wrong} | json.loads(text))
        assert await closed(keyed, wrong_text, {}) == 4401


async def test_a_socket_takes_the_key_of_its_header_or_of_its_config(keyed, key):
    header = {"authorization": f"Bearer {key}"}
    assert await closed(keyed, "no JSON", header) == 4400
    assert await closed(keyed, json.dumps({"type": "config", **LARGE, "bogus": 1}), header) == 4400
    for text in (
        json.dumps({"type": "config", "key": key, **LARGE, "bogus": 1}),
        json.dumps(
            {"voice": {"id": "x", "key": "no"}, "lexicon": {"key": "no"}, "key": key, "type": "bogus"}, indent=2
        ),
        f'{{"key": "{key}", no JSON',
    ):
        assert await closed(keyed, text, {}) == 4400
    assert await closed(keyed, json.dumps({"type": "config", "key": "no\u00e9"}), header) == 4401
