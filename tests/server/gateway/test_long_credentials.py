"""Keys and tokens of any length in requests of HTTP and on the WebSocket, and what callers read of gRPC: nothing."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from support.servers.waiting import HANG_SECONDS
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from voxcpm_grpc.network.credentials import MAX_CREDENTIAL_BYTES

TOO_LONG = (MAX_CREDENTIAL_BYTES + 1, 40_000, 64_000)
REPEATS = 8
PATHS = ("/v1/models", "/v1/audio/voices", "/prompts", "/info")
INTERNALS = ("metadata", "grpc", "127.0.0.1", "RST_STREAM", "larger than max", "connect to all", "soft limit")


def bearing(size: int) -> dict[str, str]:
    return {"authorization": "Bearer " + "x" * size}


def check(error: dict[str, Any], size: int) -> None:
    assert error["code"] == "credential_too_long"
    assert error["message"].startswith(
        f"the credential has {size} bytes and the limit is {MAX_CREDENTIAL_BYTES}; use a shorter one"
    )


@pytest.mark.parametrize("size", [1_000, 8_200, 16_400, MAX_CREDENTIAL_BYTES])
async def test_a_credential_up_to_the_limit_passes_every_time(gateway, size):
    for path in PATHS * REPEATS:
        assert (await gateway.http.get(path, headers=bearing(size))).status_code == 200
    body = {"input": "Hello."}
    assert (await gateway.http.post("/v1/audio/speech", json=body, headers=bearing(size))).status_code == 200


@pytest.mark.parametrize("size", TOO_LONG)
async def test_a_longer_one_is_431_every_time_with_both_lengths(gateway, size):
    for path in PATHS * REPEATS:
        response = await gateway.http.get(path, headers=bearing(size))
        assert response.status_code == 431
        assert "retry-after" not in response.headers, "a retry would fail again"
        check(response.json()["error"], size)
    response = await gateway.http.post("/v1/audio/speech", json={"input": "Hello."}, headers=bearing(size))
    assert response.status_code == 431


async def events(gateway: Any, *messages: dict[str, Any]) -> tuple[list[dict[str, Any]], int]:
    """The events of a socket, and the code of its close."""
    host, port = gateway.address
    found: list[dict[str, Any]] = []
    async with connect(f"ws://{host}:{port}/v1/audio/stream", max_size=None) as socket:
        for one in messages:
            await socket.send(json.dumps(one))
        try:
            async with asyncio.timeout(HANG_SECONDS):
                while True:
                    if isinstance(frame := await socket.recv(), str):
                        found.append(json.loads(frame))
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return found, closed.rcvd.code


async def test_the_key_of_a_websocket_has_the_same_limit(gateway):
    for size in (1_000, 16_400, MAX_CREDENTIAL_BYTES):
        found, code = await events(
            gateway, {"type": "config", "key": "x" * size}, {"type": "text", "text": "Hello."}, {"type": "finish"}
        )
        assert (found[-1]["type"], code) == ("summary", 1000)
    for size in TOO_LONG:
        [refused], code = await events(gateway, {"type": "config", "key": "x" * size})
        assert code == 4431
        check(refused["error"], size)
        assert refused["error"]["retry_after"] is None


async def test_callers_read_nothing_of_grpc(gateway, serve_gateway):
    large = base64.b64encode(bytes(9 << 20)).decode()
    responses = [await gateway.speak("Hello.", ref_audio=large, ref_text="Words.")]
    assert responses[0].status_code in (400, 413)
    async with serve_gateway("127.0.0.1:1") as away:
        responses += [await away.speak("Hello."), await away.http.get("/v1/models")]
    assert [one.status_code for one in responses[1:]] == [503, 503]
    for response in responses:
        text = response.json()["error"]["message"]
        assert not [word for word in INTERNALS if word.lower() in text.lower()], text
