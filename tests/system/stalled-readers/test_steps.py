"""Streams beside stalled readers need the same number of steps as without them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.doubles.pools import chunks_of, everything, patient
from support.engines.checkpoints import TINY
from support.engines.recorded_stats import RecordStats, recorded_stats
from support.engines.tiny import mixed_requests
from support.servers.waiting import NEVER_SECONDS, until

from voxcpm_grpc.events import Event, Finished
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.request import Stats
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.worker.engine_like import EngineLike
from voxcpm_grpc.worker.main import LoadEngine

SLOTS = 2
STALLED = (1, 24)  # readers at a time


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


@pytest.mark.parametrize("engines", [1, pytest.param(2, marks=pytest.mark.nightly)])
async def test_others_need_the_same_steps_with_and_without_stalled_readers(tmp_path, engines):
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
        alone = await others("before")
        requests = mixed_requests()
        undisturbed = [finished(await everything(pool.generate(request))).steps for request in requests]
        for stalled in STALLED:
            calls = [
                pool.generate(
                    replace(requests[n % len(requests)], id=f"stalled {n} of {stalled}"), window=3, first_limit=3
                )
                for n in range(stalled)
            ]
            await until(lambda calls=calls: all(call.paused for call in calls))
            assert await others(f"beside {stalled}") == alone
            for call in calls:
                call.allow(1003)
            steps = [finished(await everything(call)).steps for call in calls]
            assert steps == [undisturbed[n % len(requests)] for n in range(stalled)]
            await until(lambda: not any(one.running + one.swapped + one.slots_used for one in stats()))


def finished(events: list[Event]) -> Finished:
    assert isinstance(events[-1], Finished)
    return events[-1]
