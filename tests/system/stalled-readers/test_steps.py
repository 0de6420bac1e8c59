"""Streams beside stalled readers need the same number of steps as without them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.checkpoints import TINY
from support.engines import mixed_requests
from support.pools import everything, patient
from support.recorded_stats import RecordStats, recorded_stats
from support.waiting import NEVER_SECONDS, until

from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.local import EngineProcess, LocalEngines
from voxcpm_grpc.request import AudioChunk, Event, Finished, Stats
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.worker.dispatcher import EngineLike
from voxcpm_grpc.worker.main import LoadEngine

SLOTS = 2


@dataclass(frozen=True)
class LoadTiny:
    """Loads an engine of the tiny model with few slots."""

    folder: Path

    def __call__(self) -> EngineLike:
        settings = EngineSettings(device="cpu", max_slots=SLOTS, threads=1)
        return RecordStats(LoadEngine(TINY, "tiny", settings), self.folder)()


@contextlib.asynccontextmanager
async def tiny_pool(folder: Path, engines: int) -> AsyncIterator[tuple[EnginePool, list[EngineProcess]]]:
    handles = []

    def make_handle() -> EngineProcess:
        handles.append(EngineProcess(LoadTiny(folder), name=f"engine {len(handles)}"))
        return handles[-1]

    settings = patient(silence_seconds=NEVER_SECONDS, step_seconds=NEVER_SECONDS)
    pool = EnginePool(LocalEngines({f"engine {number}": make_handle for number in range(engines)}, settings))
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
