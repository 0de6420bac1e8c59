"""Pools that grow and shrink. When they should is told in test_scaling; test_ray has one that does under load."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from support.fake_engine import MakeFake, refuse_to_start, request
from support.pools import Launcher, everything, patient, started
from support.waiting import HANG_SECONDS, until

from voxcpm_grpc.pool.background import cancel_and_wait, keep_running
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.handle import ProcessHandle
from voxcpm_grpc.pool.ray.autoscale import autoscale
from voxcpm_grpc.pool.ray.scaler import Bounds, Scaler
from voxcpm_grpc.request import AudioChunk
from voxcpm_grpc.settings.schema import SupervisionSettings

BOUNDS = Bounds(min_engines=1, max_engines=2, grow_seconds=0.5, shrink_seconds=1.0)
BUSY = MakeFake(step_seconds=0.02, slots=2)
ONE_TRY = patient(restart_limit=1)
UNREAD = 8  # chunks made for who does not read; a stream that is longer waits for its reader


@contextlib.asynccontextmanager
async def scaled(
    *there: Launcher,
    coming: Sequence[Launcher] = (),
    bounds: Bounds = BOUNDS,
    settings: SupervisionSettings | None = None,
) -> AsyncIterator[EnginePool]:
    """A pool of engines that are there, which may get those in turn that are to come."""
    launches = iter(coming)
    async with started(*there, settings=settings) as pool:
        keeping = keep_running(lambda: autoscale(pool, lambda: next(launches), bounds), "scaling")
        try:
            yield pool
            assert not keeping.done()
        finally:
            await cancel_and_wait(keeping)


async def engines_are(pool: EnginePool, wanted: int) -> None:
    await until(lambda: [place.alive for place in pool.places] == [True] * wanted)


async def test_who_leaves_ends_what_it_speaks():
    launchers = [Launcher([replace(BUSY, slots=8)], name=f"engine-{n}") for n in range(2)]
    async with scaled(*launchers, bounds=replace(BOUNDS, shrink_seconds=0.1)) as pool:
        streams = [pool.generate(request(f"s{n}", 80), lead_chunks=UNREAD) for n in range(2)]
        assert [len(place.jobs) for place in pool.places] == [1, 1]
        await until(lambda: sum(place.alive for place in pool.places) < 2)
        assert [len(place.jobs) for place in pool.places] == [1, 1], "it speaks on"
        for events in await asyncio.gather(*(everything(stream) for stream in streams)):
            assert [event.index for event in events if isinstance(event, AudioChunk)] == list(range(80))
        await engines_are(pool, 1)


async def test_a_place_that_was_given_up_is_replaced_while_another_engine_lives():
    bad, good = Launcher([MakeFake(before=refuse_to_start)]), Launcher([BUSY])
    bounds = replace(BOUNDS, min_engines=2)
    async with scaled(Launcher([BUSY]), coming=[bad, good], bounds=bounds, settings=ONE_TRY) as pool:
        await engines_are(pool, 2)
        assert len(bad.handles) == len(good.handles) == 1


async def test_an_engine_that_cannot_be_stopped_at_once_is_stopped_later(monkeypatch, caplog):
    """And the pool grows and shrinks on."""
    close, failures = ProcessHandle.close, []

    async def fails_at_first(handle: ProcessHandle, *, force: bool = False) -> None:
        if not failures:
            failures.append(handle)
            raise OSError("too many open files")
        await close(handle, force=force)

    monkeypatch.setattr(ProcessHandle, "close", fails_at_first)
    launchers = [Launcher([BUSY], name=f"engine-{n}") for n in range(2)]
    more = Launcher([BUSY], name="engine-2")
    async with scaled(*launchers, coming=[more], bounds=replace(BOUNDS, shrink_seconds=0.1)) as pool:
        await engines_are(pool, 1)
        assert "too many open files" in caplog.text
        streams = [pool.generate(request(f"s{n}", 100), lead_chunks=UNREAD) for n in range(4)]
        await until(lambda: more.handles)
        await asyncio.gather(*map(everything, streams))
        await engines_are(pool, 1)


async def test_scaling_that_fails_goes_on(caplog):
    """Here a launch cannot be made, once."""
    good = Launcher([BUSY])
    launches = iter([None, good])

    def next_launch() -> Launcher:
        if (launch := next(launches)) is None:
            raise RuntimeError("no name is left")
        return launch

    async with started(Launcher([BUSY])) as pool:
        scaling = keep_running(lambda: autoscale(pool, next_launch, replace(BOUNDS, min_engines=2)), "scaling")
        await engines_are(pool, 2)
        assert "no name is left" in caplog.text
        await cancel_and_wait(scaling)


async def test_the_last_place_is_left_to_be_over(monkeypatch):
    first = Launcher([BUSY, MakeFake(before=refuse_to_start)])
    looks, wanted = [], Scaler.wanted
    monkeypatch.setattr(Scaler, "wanted", lambda *told: looks.append(told) or wanted(*told))
    async with scaled(first, settings=ONE_TRY) as pool:
        first.kill()
        await asyncio.wait_for(pool.closed_or_given_up(), HANG_SECONDS)
        before = len(looks)
        await until(lambda: len(looks) == before + 2)
        assert len(pool.places) == 1
