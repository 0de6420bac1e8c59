"""The status of a stream that a proxy resets after its end: the client takes the server's, and waits as it asks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.code_pb2 import Code
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RequestInfo, RetryInfo
from google.rpc.status_pb2 import Status
from support.hostile.http2_frames import CANCEL, NO_ERROR, FrameCall, frame_server
from support.servers.played_server import HEADER, audio
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_client import AsyncClient, Client, Exhausted, InvalidArgument, NotFound, SpeechError
from voxcpm_grpc.v1 import tts_pb2 as pb

RETRY = RetryInfo(retry_delay=Duration(nanos=10_000_000))
ERRORS: dict[str, tuple[type[SpeechError], list[Message]]] = {
    "NOT_FOUND": (NotFound, [ErrorInfo(reason="VOICE_NOT_FOUND", metadata={"voice": "anna"})]),
    "INVALID_ARGUMENT": (
        InvalidArgument,
        [BadRequest(field_violations=[BadRequest.FieldViolation(field="config.turn.speed")])],
    ),
    "RESOURCE_EXHAUSTED": (
        Exhausted,
        [ErrorInfo(reason="TOO_MANY_VOICES"), RetryInfo(retry_delay=Duration(seconds=999))],
    ),
}


def refusing(code: str, *details: Message, reset: int) -> Callable[[FrameCall], None]:
    """A call that ends with a status, and is reset before its client has half-closed."""
    status = Status(code=Code.Value(code), message="the reason")
    for detail in (RequestInfo(request_id="mine"), *details):
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)

    def play(call: FrameCall) -> None:
        call.answer()
        call.end(
            ("grpc-status", str(status.code)),
            ("grpc-message", status.message),
            ("grpc-status-details-bin", status.SerializeToString()),
            reset=reset,
        )

    return play


def speaking(call: FrameCall) -> None:
    call.answer(HEADER, audio(1, 2, 3))
    call.end(("grpc-status", "0"))


@pytest.mark.parametrize("reset", [NO_ERROR, CANCEL])
@pytest.mark.parametrize("code", ERRORS)
async def test_an_open_session_gets_the_status_of_the_server(code, reset):
    kind, details = ERRORS[code]
    with frame_server(refusing(code, *details, reset=reset)) as (target, calls):
        async with AsyncClient(target, timeout=HANG_SECONDS, retry_seconds=1.0) as client, client.session() as session:
            with pytest.raises(SpeechError) as raised:
                await anext(session)
    error = raised.value
    assert (type(error), error.code, error.message, error.request_id) == (kind, code, "the reason", "mine")
    found: Any = details[0]
    if isinstance(found, ErrorInfo):
        assert (error.reason, error.details) == (found.reason, dict(found.metadata))
    else:
        assert error.field == "config.turn.speed"
    assert len(calls) == 1


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAVAILABLE"])
async def test_an_open_stream_waits_for_capacity_as_the_server_asks(code):
    async def text():
        yield "Hello. "
        await asyncio.Event().wait()

    with frame_server(refusing(code, RETRY, reset=CANCEL), refusing(code, RETRY, reset=CANCEL), speaking) as (
        target,
        calls,
    ):
        async with AsyncClient(target, timeout=HANG_SECONDS) as client, client.speak(text()) as stream:
            assert (await anext(stream)).sample_count == 3
    assert len(calls) == 3


def test_the_blocking_client_waits_too():
    ended = threading.Event()

    def text():
        yield "Hello. "
        ended.wait(HANG_SECONDS)

    plays = refusing("RESOURCE_EXHAUSTED", RETRY, reset=CANCEL), speaking
    with (
        frame_server(*plays) as (target, calls),
        Client(target, timeout=HANG_SECONDS) as client,
        client.speak(text()) as stream,
    ):
        assert next(iter(stream)).sample_count == 3
        ended.set()
    assert len(calls) == 2


async def test_an_open_stream_that_the_server_has_ended_is_complete():
    """A session in which nothing was sent for a while."""
    read = threading.Event()

    def play(call: FrameCall) -> None:
        call.answer(HEADER, audio(1, 2, 3), pb.AudioChunk(summary=pb.StreamSummary(total_samples=3)))
        assert read.wait(HANG_SECONDS)
        call.end(("grpc-status", "0"), reset=CANCEL)

    with frame_server(play) as (target, calls):
        async with AsyncClient(target, timeout=HANG_SECONDS) as client, client.session() as session:
            speech = asyncio.ensure_future(session.speech())
            await until(lambda: session.summary is not None)
            read.set()
            assert len((await speech).samples) == 3
    assert len(calls) == 1


@pytest.mark.parametrize("code", ERRORS)
async def test_uploads_and_unary_calls_get_it_too(code):
    kind, details = ERRORS[code]
    play = refusing(code, *details, reset=CANCEL)
    with frame_server(play) as (target, _):
        async with AsyncClient(target, timeout=HANG_SECONDS, retry_seconds=1.0) as client:
            with pytest.raises(kind, match="the reason"):
                await client.add_reference(b"r" * (4 << 20))
            with pytest.raises(kind, match="the reason"):
                await client.encode_latents(b"r" * (4 << 20), role="prompt")
            with pytest.raises(kind, match="the reason"):
                await client.get_voice("anna")
