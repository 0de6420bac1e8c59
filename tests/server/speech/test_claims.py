"""A stream that has been heard goes on: no error asks its caller for a retry, which would speak the same text twice."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from support.servers.sessions import session
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import Exhausted, Unavailable
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech.calls import slot_wait
from voxcpm_server.values.inputs import Continuity, Flush, Text

FIRST, SECOND = "One is here.", "Two is here."


@pytest.mark.parametrize("continuity", Continuity)
def test_a_stream_with_audio_waits_for_a_slot_for_longer_than_max_queue_time(fake, continuity):
    pool = fake(slots=asyncio.Semaphore(1))
    taken: list[Any] = []
    script = [
        Text(FIRST),
        Flush("", False),
        1.0,
        lambda: taken.append(asyncio.ensure_future(pool.slots.acquire())),  # a newcomer between two sentences
        1.0,
        Text(SECOND),
        Flush("", False),
        500.0,
        pool.slots.release,
    ]
    sent = session(pool, script, continuity=continuity, max_queue=5.0)
    assert sent[-1].summary.total_samples == 960 * sum(len(request.text) for request in pool.requests)
    assert [request.continues for request in pool.requests] == [False, True]


def test_a_stream_without_audio_waits_for_max_queue_time(fake):
    pool = fake(slots=asyncio.Semaphore(0))
    with pytest.raises(Exhausted, match="no slot became free within 5") as raised:
        session(pool, [Text(FIRST), Flush("", False), 500.0], max_queue=5.0)
    assert raised.value.retry_after
    assert not pool.waiting


@pytest.mark.parametrize("error", [Exhausted("4 requests wait; try again", retry_after=1.0), Unavailable("no engine")])
async def test_after_audio_no_error_asks_for_a_retry(served, details_of, error):
    served.pool.failures[f" {SECOND}"] = -1, error
    served.pool.hold_after = 1
    call = served.stub.Generate(iter([pb.GenerateRequest(text=f"{FIRST} {SECOND}")]))
    received = 0
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for chunk in call:
            received += chunk.sample_count
            if received:
                served.pool.release()
    assert raised.value.code() is grpc.StatusCode.ABORTED
    details = details_of(raised.value)
    assert details.retry_seconds is None
    assert details.pushback_ms is None
    assert "try again" not in str(raised.value.details())
    assert "after audio was sent" in str(raised.value.details())


async def code_at_the_deadline(served: Any, seconds: float) -> grpc.StatusCode | None:
    """The end of a stream that waits for a slot after its first sentence; None if that takes too long."""
    call = served.stub.Generate(timeout=seconds)
    try:
        for message in (pb.GenerateRequest(text=FIRST), pb.GenerateRequest(flush=pb.Flush(tag="a"))):
            await call.write(message)
        while not (await call.read()).HasField("flush_done"):
            pass
    except (grpc.aio.AioRpcError, AttributeError):
        return None
    for _ in range(4):
        await served.pool.slots.acquire()
    for message in (pb.GenerateRequest(text=SECOND), pb.GenerateRequest(flush=pb.Flush())):
        await call.write(message)
    return await call.code()


async def test_a_deadline_after_audio_is_a_deadline(served, monkeypatch):
    """The server's own limit on the wait for a slot would come first."""
    monkeypatch.setattr(slot_wait, "DEADLINE_SHARE", 0.01)
    for seconds in (2.0, 10.0, HANG_SECONDS):  # until the first sentence is sent in time
        if code := await code_at_the_deadline(served, seconds):
            break
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    await served.idle()


async def test_a_deadline_before_audio_is_a_full_queue_only_if_slots_are_what_is_missing(served, monkeypatch):
    monkeypatch.setattr(slot_wait, "DEADLINE_SHARE", 0.01)
    for _ in range(4):
        await served.pool.slots.acquire()
    monkeypatch.setattr(type(served.pool), "waits_for_slot", lambda self, call: False)
    assert await served.code_at_the_deadline(FIRST, seconds=1.0) is grpc.StatusCode.DEADLINE_EXCEEDED
    monkeypatch.undo()
    monkeypatch.setattr(slot_wait, "DEADLINE_SHARE", 0.1 / HANG_SECONDS)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await served.generate(pb.GenerateConfig(max_queue_time=Duration(seconds=30)), FIRST, timeout=HANG_SECONDS)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    await until(lambda: not served.pool.waiting)
