"""Batch streams on a server: their priority reaches the engine, and they may wait for longer."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from voxcpm_grpc.request import Priority
from voxcpm_grpc.v1 import tts_pb2 as pb

BATCH = pb.GenerateConfig(priority=pb.PRIORITY_BATCH)


@pytest.mark.parametrize(
    ("config", "priority"),
    [
        (pb.GenerateConfig(), Priority.INTERACTIVE),
        (pb.GenerateConfig(priority=pb.PRIORITY_INTERACTIVE), Priority.INTERACTIVE),
        (BATCH, Priority.BATCH),
    ],
)
async def test_every_segment_of_a_stream_has_its_priority(served, config, priority):
    await served.generate(config, "One is here. Two is here.")
    assert [request.priority for request in served.pool.requests] == [priority, priority]


async def test_a_priority_that_does_not_exist_is_refused(served, details_of):
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await served.generate(pb.GenerateConfig(priority=7), "Hello.")  # type: ignore[arg-type]
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(raised.value).field == "config.priority"


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        (None, "0.1"),
        (BATCH, "0.3"),
        (pb.GenerateConfig(max_queue_time=Duration(nanos=2 * 10**8), priority=pb.PRIORITY_BATCH), "0.2"),
    ],
)
async def test_a_batch_stream_waits_for_a_slot_up_to_a_limit_of_its_own(serve_front, details_of, config, seconds):
    async with serve_front(max_queue_seconds=0.1, max_batch_queue_seconds=0.3) as served:
        for _ in range(4):
            await served.pool.slots.acquire()
        with pytest.raises(grpc.aio.AioRpcError, match=f"no slot became free within {seconds} s") as raised:
            await served.generate(config or pb.GenerateConfig(), "Hello.")
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert details_of(raised.value).retry_seconds
