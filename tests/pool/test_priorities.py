"""The pool takes interactive streams before batch streams."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.doubles.fake_engine import MakeFake, request
from support.doubles.pools import everything, patient, pool_of

from voxcpm_grpc.errors import QueueFull, QueueTooLong
from voxcpm_grpc.events import Admitted
from voxcpm_grpc.pool.balancer import Room
from voxcpm_grpc.request import Priority, Request

BOOK = "A long story that takes its time. " * 200


def batch(name: str, steps: int = 10**6, text: str = BOOK) -> Request:
    return replace(request(name, steps, text), priority=Priority.BATCH)


async def test_an_interactive_stream_prefers_a_free_slot_to_that_of_a_batch_stream_and_this_to_a_queue():
    async with pool_of(MakeFake(slots=1), MakeFake(slots=1), settings=patient()) as pool:
        calls = [pool.generate(batch("batch"))]
        [first, second] = sorted(pool.replicas, key=lambda replica: len(replica.calls), reverse=True)
        assert first.load()[0] is Room.BATCH and first.load(is_batch=True)[0] is Room.QUEUE
        calls.append(pool.generate(request("call", 10**6)))
        assert [len(replica.calls) for replica in (first, second)] == [1, 1]
        calls.append(pool.generate(request("next call", 10**6)))
        assert [len(replica.calls) for replica in (first, second)] == [2, 1]
        assert {replica.load()[0] for replica in (first, second)} == {Room.QUEUE}
        for call in calls:
            await call.aclose()


async def test_a_queue_full_of_batch_streams_accepts_interactive_streams():
    async with pool_of(MakeFake(slots=1, queue=1), settings=patient()) as pool:
        calls = [pool.generate(request("running", 10**6)), pool.generate(batch("waiting"))]
        with pytest.raises(QueueFull, match="1 requests wait, the limit is 1"):
            await anext(pool.generate(batch("refused")))
        calls.append(pool.generate(request("call", 3)))
        assert not calls[-1].events.peek()
        with pytest.raises(QueueFull):
            await anext(pool.generate(request("refused", 3)))
        for call in calls:
            await call.aclose()


async def test_batch_streams_ahead_do_not_count_for_the_deadline_of_an_interactive_stream():
    async with pool_of(MakeFake(slots=1, step_seconds=0.002), settings=patient()) as pool:
        await everything(pool.generate(request("known", 40)))
        book = pool.generate(batch("book"), window=10**6)
        assert isinstance(await anext(book), Admitted)
        with pytest.raises(QueueTooLong):
            await anext(pool.generate(batch("another"), seconds_left=5.0))
        call = pool.generate(request("call", 3), seconds_left=5.0)
        assert not call.events.peek()
        await book.aclose()
        await call.aclose()
