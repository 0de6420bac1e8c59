"""Streams whose clients do not read take no room from others, and a full queue refuses at once."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.checkpoints import TINY
from support.engines import mixed_requests
from support.fake_engine import MakeFake, request
from support.pools import everything, patient, pool_of
from support.recorded_stats import RecordStats, recorded_stats
from support.waiting import NEVER_SECONDS, until

from voxcpm_grpc.errors import Exhausted, QueueFull
from voxcpm_grpc.pool.balancer import Room
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.handle import ProcessHandle
from voxcpm_grpc.pool.replica import Replica
from voxcpm_grpc.request import Admitted, AudioChunk, Event, Finished, Stats
from voxcpm_grpc.settings.schema import EngineSettings
from voxcpm_grpc.worker.dispatcher import EngineLike
from voxcpm_grpc.worker.main import LoadEngine

SLOTS = 2


def room(replica: Replica) -> Room:
    return replica.load()[0]


async def test_a_stream_that_is_not_read_leaves_its_replica_free():
    async with pool_of(MakeFake(slots=2)) as pool:
        [replica] = pool.replicas
        calls = [pool.generate(request(f"stalled {n}", 100), lead_chunks=4, grant_on_read=False) for n in range(2)]
        assert room(replica) is Room.QUEUE
        await until(lambda: all(call.paused for call in calls))
        assert room(replica) is Room.SLOT and replica.load()[1] == 0
        calls[0].grant(2)
        assert replica.load()[1] > 0
        calls[1].grant(2)
        assert room(replica) is Room.QUEUE


async def test_streams_that_are_not_read_do_not_send_others_to_a_busier_replica():
    async with pool_of(MakeFake(slots=2), MakeFake(slots=2)) as pool:
        stalled = [pool.generate(request(f"stalled {n}", 1000), lead_chunks=4, grant_on_read=False) for n in range(4)]
        await until(lambda: all(call.paused for call in stalled))
        assert [len(replica.calls) for replica in pool.replicas] == [2, 2]
        busy = [pool.generate(request(f"busy {n}", 10**6), lead_chunks=10**6) for n in range(2)]
        assert all(replica.load()[1] > 0 for replica in pool.replicas), "each has one of them"
        for call in busy:
            await call.aclose()


async def test_a_full_queue_refuses_while_the_engine_does_not_answer():
    async with pool_of(MakeFake(slots=1, queue=1), settings=patient()) as pool:
        hung = pool.generate(request("hung", 100, "hang"))
        assert isinstance(await anext(hung), Admitted)
        waiting = pool.generate(request("waiting", 3))
        with pytest.raises(QueueFull, match="all slots are in use and 1 requests wait, the limit is 1") as refused:
            await anext(pool.generate(request("refused", 3)))
        assert refused.value.retry_after == 1.0
        assert not waiting.events.peek()
        continues = pool.generate(replace(request("continues", 3), continues=True))
        assert not continues.events.peek(), "a stream of which audio was sent is never refused"
        await waiting.aclose()
        await continues.aclose()
        accepted = pool.generate(request("accepted", 3))
        assert not accepted.events.peek()


async def test_a_request_is_refused_only_if_the_queues_of_all_replicas_are_full():
    make = MakeFake(slots=1, queue=1)
    async with pool_of(make, make, settings=patient()) as pool:
        calls = [pool.generate(request(f"hung {n}", 100, "hang")) for n in range(2)]
        for call in calls:
            assert isinstance(await anext(call), Admitted)
        queued = [pool.generate(request(f"queued {n}", 3)) for n in range(2)]
        assert [len(replica.calls) for replica in pool.replicas] == [2, 2]
        with pytest.raises(Exhausted, match="requests wait"):
            await anext(pool.generate(request("refused", 3)))
        await queued[1].aclose()
        assert not pool.generate(request("accepted", 3)).events.peek()


# ---- with engines of a model


@dataclass(frozen=True)
class LoadTiny:
    """Loads an engine of the tiny model with few slots."""

    folder: Path

    def __call__(self) -> EngineLike:
        settings = EngineSettings(device="cpu", max_slots=SLOTS, threads=1)
        return RecordStats(LoadEngine(TINY, "tiny", settings), self.folder)()


@contextlib.asynccontextmanager
async def tiny_pool(folder: Path, engines: int) -> AsyncIterator[tuple[EnginePool, list[ProcessHandle]]]:
    handles = []

    def make_handle() -> ProcessHandle:
        handles.append(ProcessHandle(LoadTiny(folder), name=f"engine {len(handles)}"))
        return handles[-1]

    settings = patient(silence_seconds=NEVER_SECONDS, step_seconds=NEVER_SECONDS)
    pool = EnginePool([make_handle] * engines, settings)
    await pool.start()
    try:
        yield pool, handles
    finally:
        await pool.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engines", [1, 2])
@pytest.mark.parametrize("stalled", [1, 8, 64])
async def test_others_need_the_same_steps_with_and_without_stalled_readers(tmp_path, engines, stalled):
    """A step of them takes as long in both cases, so their throughput is the same."""
    async with tiny_pool(tmp_path, engines) as (pool, handles):

        def stats() -> list[Stats]:
            return [recorded_stats(tmp_path, handle.pid) for handle in handles]

        async def others(name: str) -> tuple[list[int], int]:
            """The chunks of some streams, one after the other, and the steps of all engines meanwhile."""
            before = sum(one.steps for one in stats())
            calls = [replace(template, id=f"{name} {template.id}") for template in mixed_requests(4)]
            chunks = [chunks_of(await everything(pool.generate(call))) for call in calls]
            return chunks, sum(one.steps for one in stats()) - before

        await others("first")  # the first records include the steps of the warm-up
        alone, steps = await others("before")
        requests = [replace(mixed_requests()[n % 8], id=f"stalled {n}") for n in range(stalled)]
        calls = [pool.generate(request, lead_chunks=3, grant_on_read=False) for request in requests]
        await until(lambda: all(call.paused for call in calls))
        chunks, steps_beside = await others("beside")
        assert chunks == alone
        assert steps_beside == steps
        for call in calls:
            call.grant(1000)
        ends = [(await everything(call))[-1] for call in calls]
        assert all(isinstance(end, Finished) for end in ends)
        undisturbed = [(await everything(pool.generate(request)))[-1] for request in requests[:8]]
        assert [end.steps for end in ends] == [undisturbed[n % 8].steps for n in range(stalled)]
        await until(lambda: not any(one.running + one.swapped + one.slots_used for one in stats()))


def chunks_of(events: list[Event]) -> int:
    return sum(isinstance(event, AudioChunk) for event in events)
