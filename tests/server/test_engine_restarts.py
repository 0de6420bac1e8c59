"""Callers of a server whose only engine restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from support.clients.grpc_types import EOF
from support.doubles.fake_engine import MakeFake
from support.doubles.pools import Launcher, health_is, patient, pool_with
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until, wait_until

from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.app import running_server

SHORT = pb.TurnConfig(sampling=pb.Sampling(max_steps=20))


def wait_for(file: Path) -> None:
    wait_until(file.exists, NEVER_SECONDS)


@asynccontextmanager
async def served(may_start: Path) -> AsyncIterator[tuple[Launcher, EnginePool, Any]]:
    """An engine whose successors start when the file `may_start` exists, its pool, and the stub of a server with it."""
    engine = Launcher([MakeFake(), MakeFake(before=partial(wait_for, may_start))])
    pool = pool_with(engine, settings=patient(restart_seconds=0.1))
    settings = Settings(
        listen="127.0.0.1:0",
        voices=VoiceSettings(url=str(may_start.parent / "voices")),
        limits=LimitSettings(max_queue_seconds=HANG_SECONDS),
    )
    async with running_server(settings, pool=pool) as server, grpc.aio.insecure_channel(server.address) as channel:
        yield engine, pool, tts_pb2_grpc.VoxCPMServiceStub(channel)


def messages(*texts: str, **config: Any) -> list[pb.GenerateRequest]:
    first = pb.GenerateRequest(config=pb.GenerateConfig(turn=SHORT, **config))
    return [first, *(pb.GenerateRequest(text=text) for text in texts)]


async def test_who_may_wait_is_served_and_who_may_not_is_told_when_to_retry(tmp_path, details_of):
    may_start = tmp_path / "may start"
    async with served(may_start) as (engine, pool, stub):
        engine.kill()
        await health_is(pool, False)
        waiting = stub.Generate(iter(messages("Hello there.")))
        await until(lambda: pool.waiting_for_engine)
        pool.replicas[0].restarts.expect(NEVER_SECONDS)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            brief = Duration(nanos=500_000)
            async for _ in stub.Generate(iter(messages("I cannot wait.", max_queue_time=brief))):
                pass
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        details = details_of(caught.value)
        assert details.reason == "NO_ENGINE" and NEVER_SECONDS / 2 < details.retry_seconds <= NEVER_SECONDS
        assert details.pushback_ms == pytest.approx(1000 * details.retry_seconds)
        may_start.touch()
        chunks = [chunk async for chunk in waiting]
        assert chunks[-1].summary.total_samples
        assert chunks[-1].summary.queue_time.ToNanoseconds() > 0


async def test_a_stream_whose_turn_is_over_speaks_the_next_one_after_the_restart(tmp_path):
    may_start = tmp_path / "may start"
    async with served(may_start) as (engine, pool, stub):
        call = stub.Generate()
        for message in (*messages("One is here."), pb.GenerateRequest(flush=pb.Flush(tag="one"))):
            await call.write(message)
        while not (await call.read()).HasField("flush_done"):
            pass
        engine.kill()
        await health_is(pool, False)
        await call.write(pb.GenerateRequest(text="Two is here."))
        await call.done_writing()
        await until(lambda: pool.waiting_for_engine)
        may_start.touch()
        last = None
        while (chunk := await call.read()) is not EOF:
            last = chunk
        assert last is not None and last.summary.segments == 2
