"""Tokens of 1 to 64 kB at every door: each length has one answer, every time."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections import Counter
from typing import Any

import grpc
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from voxcpm_client import AsyncClient, InvalidArgument
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

LIMIT = 32_768  # as docs/security.md says
SIZES = (*range(1_000, 64_001, 3_000), LIMIT, LIMIT + 1)
REPEATS = 8  # of each length
SOCKETS = 2
OK = "OK"


def expected(size: int, refusal: str) -> str:
    return OK if size <= LIMIT else f"{refusal} the credential has {size} bytes and the limit is {LIMIT}"


def shortened(code: object, text: str) -> str:
    """A refusal without its remedy."""
    return f"{code} {text.partition(';')[0]}"


def check(answers: dict[int, Counter[str]], refusal: str, repeats: int = REPEATS) -> None:
    assert answers == {size: Counter({expected(size, refusal): repeats}) for size in SIZES}


async def grpc_answer(stub: Any, metadata: tuple[tuple[str, str], ...]) -> str:
    try:
        await stub.ListModels(pb.ListModelsRequest(), metadata=metadata, timeout=60)
    except grpc.aio.AioRpcError as error:
        assert "grpc-retry-pushback-ms" not in [name for name, _ in error.trailing_metadata() or ()]
        return shortened(error.code().name, error.details() or "")
    return OK


async def test_grpc_gives_each_length_one_answer(site):
    answers: dict[int, Counter[str]] = {size: Counter() for size in SIZES}
    for number in range(REPEATS):
        async with grpc.aio.insecure_channel(site.server.address) as channel:
            stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
            for size in SIZES:  # one connection for all lengths: none of them ends it
                metadata = [("authorization", "Bearer " + chr(97 + number) * size), ("baggage", "b" * 8_000)]
                answers[size][await grpc_answer(stub, tuple(metadata))] += 1
    check(answers, "RESOURCE_EXHAUSTED")


async def test_other_metadata_of_8_to_30_kb_passes_every_time(site):
    async with grpc.aio.insecure_channel(site.server.address) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        for size in range(8_000, 30_001, 2_000):
            for name in ("baggage", "cookie"):
                found = [await grpc_answer(stub, ((name, "x" * size),)) for _ in range(5)]
                assert found == [OK] * 5


async def test_the_python_client_has_the_same_limit(site):
    async with AsyncClient(site.server.address) as client:
        for size in SIZES:
            if size <= LIMIT:
                for _ in range(3):
                    assert await client.with_metadata({"authorization": "Bearer " + "x" * size}).list_models()
            else:
                with pytest.raises(InvalidArgument, match=f"credential has {size} bytes and the limit is {LIMIT}"):
                    AsyncClient(site.server.address, api_key="x" * size)


def test_http_gives_each_length_one_answer(site):
    answers: dict[int, Counter[str]] = {size: Counter() for size in SIZES if size < 64_000}  # with the rest of a head
    connection = http.client.HTTPConnection(site.host, timeout=60)
    for size in answers:
        for _ in range(REPEATS):
            connection.request("GET", "/v1/models", headers={"authorization": "Bearer " + "x" * size})
            response = connection.getresponse()
            body = json.loads(response.read())
            found = OK if response.status == 200 else shortened(response.status, body["error"]["message"])
            assert response.status == 200 or "retry-after" not in response.headers
            answers[size][found] += 1
    connection.close()
    assert answers == {size: Counter({expected(size, "431"): REPEATS}) for size in answers}


async def websocket_answer(url: str, size: int) -> str:
    async with connect(url, max_size=None) as socket:
        await socket.send(json.dumps({"type": "config", "key": "x" * size}))
        await socket.send(json.dumps({"type": "finish"}))
        try:
            async with asyncio.timeout(60):
                while True:
                    event = json.loads(await socket.recv())
                    if event["type"] == "summary":
                        return OK
                    if event["type"] == "error":
                        await socket.wait_closed()
                        return shortened(socket.close_code, event["error"]["message"])
        except ConnectionClosed as closed:
            return f"closed {closed}"


async def test_the_websocket_gives_each_length_one_answer(site):
    url = f"ws://{site.host}/v1/audio/stream"
    answers = {size: Counter([await websocket_answer(url, size) for _ in range(SOCKETS)]) for size in SIZES}
    check(answers, "4431", SOCKETS)
