"""Bytes that are no call, and calls that no client makes, end alone: the server serves all others.

The load is bounded: a case sends at most 2 MB in at most 10,000 frames.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
from support.hostile.frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GENERATE,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    call,
    call_headers,
    exchange,
    frame,
    grpc_message,
    headers,
)
from support.servers.admin_stats import Admin
from support.servers.targets import Service, Target, config, message, refusal, rest

from voxcpm_grpc.v1 import tts_pb2 as pb

INVALID = grpc.StatusCode.INVALID_ARGUMENT
SERVICE = "voxcpm_grpc.v1.VoxCPMService"
STREAMS = ("Generate", "AddPrompt", "AddReference", "AddHifi")
HELLO = PREFACE + frame(SETTINGS)
TEXT = grpc_message(pb.GenerateRequest(text="Hello.").SerializeToString())


@pytest.fixture
async def bystander(service: Service) -> AsyncIterator[None]:
    """A stream that is open during the test, and is spoken to its end afterwards."""
    stream = service.Generate()
    for body in (config(), "Hello there. "):
        await stream.write(message(body))
    assert (await stream.read()).HasField("header")
    yield
    await stream.write(message("How are you?"))
    await stream.done_writing()
    assert (await rest(stream))[-1].summary.segments == 2


# ---- protobuf


@pytest.mark.parametrize("data", [b"\xff\xff\xff\x12", b"\x12\x02\xff\xfe", b"\x0a\x7f", b"\x0b" * 500], ids=repr)
@pytest.mark.parametrize("method", STREAMS)
async def test_bytes_that_are_no_message_are_refused(service: Service, method: str, data: bytes) -> None:
    stream = service.channel.stream_stream(f"/{SERVICE}/{method}")
    code, text, details = await refusal(stream(iter([data]), timeout=60, metadata=service.metadata))
    assert code is INVALID and "valid protobuf" in text
    assert details.request_id and details.bad_request


@pytest.mark.parametrize("method", ["GetVoice", "ListVoices", "UpdateVoice", "DeleteVoice"])
async def test_bytes_that_are_no_request_are_refused(service: Service, method: str) -> None:
    unary = service.channel.unary_unary(f"/{SERVICE}/{method}")
    code, text, details = await refusal(unary(b"\xff\xff\xff\x12", timeout=60, metadata=service.metadata))
    assert code is INVALID and "valid protobuf" in text
    assert details.request_id and details.bad_request


# ---- HTTP


@pytest.mark.parametrize(
    "request_text",
    [
        "GET / HTTP/1.1\r\nHost: voxcpm.test\r\n\r\n",
        f"POST {GENERATE} HTTP/1.1\r\nHost: voxcpm.test\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: voxcpm.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
        "HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
        "GET /\r\n\r\n",
    ],
    ids=["GET", "POST", "upgrade", "HTTP/0.9"],
)
async def test_http_1_is_answered_by_the_end_of_the_connection(
    target: Target, bystander: None, request_text: str
) -> None:
    received = await asyncio.to_thread(exchange, target.connect(), request_text.encode(), seconds=60)
    assert GENERATE.encode() not in received
    assert not received.startswith(b"HTTP/1.1 200")


def many(count: int, make: Callable[[int], bytes]) -> bytes:
    return b"".join(make(index) for index in range(count))


def odd(index: int) -> int:
    """The number of a client's stream, counted from 0."""
    return 2 * index + 1


BLOCK = call_headers()
HOSTILE: dict[str, bytes] = {
    "noise": bytes(range(256)) * 40,
    "nothing": b"",
    "half a preface": PREFACE[:10],
    "TLS or none": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "no settings": PREFACE + call(),
    "truncated frame": HELLO + frame(HEADERS, BLOCK[:20], flags=END_HEADERS, stream=1, length=len(BLOCK)),
    "truncated header of a frame": HELLO + b"\0\0",
    "frame of 16 MB": HELLO + frame(DATA, bytes(1000), stream=1, length=0xFFFFFF),
    "unknown frames": HELLO + many(1000, lambda i: frame(0xAB, b"xyz", flags=0xFF, stream=i)),
    "data on stream 0": HELLO + frame(DATA, b"x"),
    "data without a call": HELLO + frame(DATA, b"x", stream=1),
    "headers on stream 0": HELLO + call(stream=0),
    "a stream of the server's": HELLO + call(stream=2),
    "streams that go down": HELLO + call(stream=9) + call(stream=3),
    "two headers of a stream": HELLO + call() + call(),
    "broken HPACK": HELLO + frame(HEADERS, b"\xff\xff\xff\xff\xff\xff", flags=END_HEADERS, stream=1),
    "HPACK index of nothing": HELLO + frame(HEADERS, b"\xfe", flags=END_HEADERS, stream=1),
    "padding longer than the frame": HELLO + frame(HEADERS, b"\xff" + BLOCK[:9], flags=END_HEADERS | PADDED, stream=1),
    "headers of 1 MB": HELLO
    + frame(HEADERS, BLOCK, stream=1)
    + many(64, lambda i: frame(CONTINUATION, headers([(f"x-{i}", "y" * 16000)]), stream=1)),
    "endless continuation": HELLO
    + frame(HEADERS, BLOCK, stream=1)
    + many(5000, lambda i: frame(CONTINUATION, b"", stream=1)),
    "continuation of nothing": HELLO + frame(CONTINUATION, BLOCK, flags=END_HEADERS, stream=1),
    "data inside headers": HELLO + frame(HEADERS, BLOCK, stream=1) + frame(DATA, TEXT, stream=1),
    "push": HELLO + frame(PUSH_PROMISE, struct.pack(">I", 2) + BLOCK, flags=END_HEADERS, stream=1),
    "settings of a wrong size": PREFACE + frame(SETTINGS, b"xyz"),
    "settings out of range": PREFACE + frame(SETTINGS, struct.pack(">HIHI", 4, 0xFFFFFFFF, 5, 1)),
    "settings flood": HELLO + frame(SETTINGS) * 5000,
    "acknowledgements of nothing": HELLO + frame(SETTINGS, flags=ACK) * 1000,
    "ping flood": HELLO + frame(PING, bytes(8)) * 5000,
    "ping of a wrong size": HELLO + frame(PING, b"x"),
    "window of 0": HELLO + call() + frame(WINDOW_UPDATE, bytes(4), stream=1),
    "window overflow": HELLO + call() + frame(WINDOW_UPDATE, struct.pack(">I", 0x7FFFFFFF), stream=1) * 3,
    "reset of nothing": HELLO + frame(RST_STREAM, CANCEL, stream=7),
    "rapid reset": HELLO + many(1000, lambda i: call(stream=odd(i)) + frame(RST_STREAM, CANCEL, stream=odd(i))),
    "rapid reset with text": HELLO
    + many(
        300,
        lambda i: call(stream=odd(i)) + frame(DATA, TEXT, stream=odd(i)) + frame(RST_STREAM, CANCEL, stream=odd(i)),
    ),
    "a thousand streams": HELLO + many(1000, lambda i: call(stream=odd(i))),
    "priority of itself": HELLO + frame(PRIORITY, struct.pack(">IB", 1, 0), stream=1) * 1000,
    "going away": HELLO + call() + frame(GOAWAY, struct.pack(">II", 0, 11)) + frame(DATA, TEXT, stream=1),
    # calls of gRPC that are not what they say
    "unknown method": HELLO + call("/" + "x" * 5000),
    "no path": HELLO + frame(HEADERS, headers([(":method", "POST"), (":scheme", "http")]), flags=END_HEADERS, stream=1),
    "GET": HELLO
    + frame(HEADERS, headers([(":method", "GET"), (":path", GENERATE)]), flags=END_HEADERS | END_STREAM, stream=1),
    "a timeout that is none": HELLO + call(GENERATE, ("grpc-timeout", "99999999999999999999H")),
    "metadata that is none": HELLO + call(GENERATE, ("x-bin", "%%%"), ("authorization", "\x01\x02")),
    "an encoding that is none": HELLO
    + call(GENERATE, ("grpc-encoding", "rot13"))
    + frame(DATA, b"\x01" + TEXT[1:], stream=1),
    "compressed without an encoding": HELLO + call() + frame(DATA, b"\x01" + TEXT[1:], stream=1),
    "a message of 4 GB": HELLO + call() + frame(DATA, grpc_message(b"x", length=0xFFFFFFFF), stream=1),
    "half a message": HELLO + call() + frame(DATA, TEXT[:-2], flags=END_STREAM, stream=1),
    "half a prefix": HELLO + call() + frame(DATA, b"\0\0", flags=END_STREAM, stream=1),
    "a message of frames of one byte": HELLO + call() + b"".join(frame(DATA, bytes([byte]), stream=1) for byte in TEXT),
    "empty data": HELLO + call() + frame(DATA, b"", stream=1) * 5000,
    "data after the end": HELLO + call() + frame(DATA, TEXT, flags=END_STREAM, stream=1) + frame(DATA, TEXT, stream=1),
}


@pytest.mark.parametrize("half_close", [True, False], ids=["truncated", "silent"])
@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_frames_end_their_own_connection_at_most(
    target: Target, bystander: None, name: str, half_close: bool
) -> None:
    """The connection is half-closed behind the bytes, or silent for a moment and then closed."""
    assert len(HOSTILE[name]) < 2_000_000
    wait = 60.0 if half_close else 0.2
    await asyncio.to_thread(exchange, target.connect(), HOSTILE[name], half_close=half_close, seconds=wait)


async def test_many_connections_that_say_nothing_do_not_shut_others_out(target: Target, service: Service) -> None:
    silent = [await asyncio.to_thread(target.connect) for _ in range(200)]
    try:
        async with target.service() as another:
            assert (await another.speak(config(), "Hello."))[-1].summary.total_samples
    finally:
        for connection in silent:
            connection.close()


async def test_calls_behind_a_burst_are_served(target: Target, service: Service) -> None:
    """2,500 calls arrive at once. Those that come after them wait for their turn, and none is reset."""
    await service.GetModelInfo(pb.GetModelInfoRequest())
    connections = [await asyncio.to_thread(target.connect) for _ in range(25)]
    try:
        for connection in connections:
            await asyncio.to_thread(connection.sendall, HELLO + many(100, lambda i: call(stream=odd(i))))
        asked = (service.GetModelInfo(pb.GetModelInfoRequest()) for _ in range(200))
        assert len({info.model_fingerprint for info in await asyncio.gather(*asked)}) == 1
    finally:
        for connection in connections:
            connection.close()


async def test_hostile_frames_leave_nothing_behind(target: Target, admin: Admin) -> None:
    before, files = await admin.usage(), await admin.open_files()
    for data in HOSTILE.values():
        await asyncio.to_thread(exchange, target.connect(), data, half_close=True, seconds=60)
    await admin.until(lambda usage: usage.is_within(before))
    await admin.until_files(files)
