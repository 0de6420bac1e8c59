"""The measurement of what callers do to each other ends, whatever the server does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from support.servers.played_server import HEADER, audio
from support.servers.waiting import HANG_SECONDS

from benchmarks.interference.__main__ import refusals
from benchmarks.measuring.deadline import within
from voxcpm_client import SpeechError
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc


class FailsLongStreams(tts_pb2_grpc.VoxCPMServiceServicer):
    """A server that has room for all calls, and fails those of many steps."""

    async def Generate(self, requests: AsyncIterator[pb.GenerateRequest], context: Any) -> AsyncIterator[pb.AudioChunk]:  # type: ignore[override]
        first = await anext(requests)
        if first.config.turn.sampling.max_steps > 3:
            await context.abort(grpc.StatusCode.INTERNAL, "an engine has a fault")
        yield HEADER
        yield audio(1, 2, 3)
        yield pb.AudioChunk(summary=pb.StreamSummary(total_samples=3))


async def test_refusals_are_not_waited_for_when_the_streams_that_fill_the_queue_fail():
    server = grpc.aio.server()
    tts_pb2_grpc.add_VoxCPMServiceServicer_to_server(FailsLongStreams(), server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        with pytest.raises(ExceptionGroup) as failed:
            async with asyncio.timeout(HANG_SECONDS):
                await refusals(target, 1, 4)
        assert failed.group_contains(SpeechError, match="an engine has a fault")
    finally:
        await server.stop(None)


def test_a_measurement_that_hangs_ends_and_shows_where(capsys):
    async def waits_for_nobody() -> None:
        await asyncio.Event().wait()

    with pytest.raises(SystemExit, match=r"more than 0.01 s"):
        asyncio.run(within(0.01, waits_for_nobody()))
    assert "in waits_for_nobody" in capsys.readouterr().err


def test_a_time_limit_of_the_measurement_itself_is_not_taken_for_the_limit():
    async def fails() -> None:
        raise TimeoutError("of its own")

    with pytest.raises(TimeoutError, match="of its own"):
        asyncio.run(within(HANG_SECONDS, fails()))
