"""Pools that grow and shrink. test_scaling tests the decisions, and the tests of Ray a pool under load."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

from support.doubles.fake_engine import MakeFake, refuse_to_start, request
from support.doubles.pools import Launcher, RecordedPool, everything, indexes_of, patient, started
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.aio.tasks import cancel_and_wait, keep_running
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess
from voxcpm_grpc.pool.ray.autoscale import autoscale
from voxcpm_grpc.pool.ray.scaler import Bounds, Scaler
from voxcpm_grpc.settings.engine import SupervisionSettings

BOUNDS = Bounds(min_engines=1, max_engines=2, grow_seconds=0.5, shrink_seconds=1.0)
BUSY = MakeFake(step_seconds=0.02, slots=2)
ONE_TRY = patient(restart_limit=1)
UNREAD = 8  # chunks that an engine makes for a stream that is not read


@contextlib.asynccontextmanager
async def scaled(
    *launchers: Launcher,
    more: Sequence[Launcher] = (),
    bounds: Bounds = BOUNDS,
    settings: SupervisionSettings | None = None,
) -> AsyncIterator[RecordedPool]:
    """A started pool of these launchers that adds `more` of them, one after the other."""
    factories = ((launcher.name, launcher) for launcher in more)
    async with started(*launchers, settings=settings) as pool:
        scaling = keep_running(lambda: autoscale(pool, pool.engines, lambda: next(factories), bounds), "scaling")
        try:
            yield pool
            assert not scaling.done()
        finally:
            await cancel_and_wait(scaling)


async def ready_engines_are(pool: EnginePool, wanted: int) -> None:
    await until(lambda: [replica.ready for replica in pool.replicas] == [True] * wanted)


async def test_a_removed_replica_gives_its_streams_to_others():
    launchers = [Launcher([replace(BUSY, slots=8)], name=f"engine-{n}") for n in range(2)]
    async with scaled(*launchers, bounds=replace(BOUNDS, shrink_seconds=0.1)) as pool:
        streams = [pool.generate(request(f"s{n}", 80), window=UNREAD) for n in range(2)]
        assert [len(replica.calls) for replica in pool.replicas] == [1, 1]
        await until(lambda: sum(replica.ready for replica in pool.replicas) < 2)
        assert 2 in [len(replica.calls) for replica in pool.replicas]
        for events in await asyncio.gather(*(everything(stream) for stream in streams)):
            assert indexes_of(events) == list(range(80))
        await ready_engines_are(pool, 1)


async def test_a_replica_that_was_given_up_is_replaced_while_another_engine_is_ready():
    bad, good = Launcher([MakeFake(before=refuse_to_start)], "bad"), Launcher([BUSY], "good")
    bounds = replace(BOUNDS, min_engines=2)
    async with scaled(Launcher([BUSY]), more=[bad, good], bounds=bounds, settings=ONE_TRY) as pool:
        await ready_engines_are(pool, 2)
        assert len(bad.processes) == len(good.processes) == 1


async def test_an_engine_that_cannot_be_stopped_at_once_is_stopped_later(monkeypatch, caplog):
    """The pool continues to grow and shrink."""
    close, failures = EngineProcess.close, []

    async def fails_at_first(process: EngineProcess, *, force: bool = False) -> None:
        if not failures:
            failures.append(process)
            raise OSError("too many open files")
        await close(process, force=force)

    monkeypatch.setattr(EngineProcess, "close", fails_at_first)
    launchers = [Launcher([BUSY], name=f"engine-{n}") for n in range(2)]
    more = Launcher([BUSY], name="engine-2")
    async with scaled(*launchers, more=[more], bounds=replace(BOUNDS, shrink_seconds=0.1)) as pool:
        await ready_engines_are(pool, 1)
        assert "too many open files" in caplog.text
        streams = [pool.generate(request(f"s{n}", 100), window=100) for n in range(4)]
        await until(lambda: more.processes)
        await asyncio.gather(*map(everything, streams))
        await ready_engines_are(pool, 1)


async def test_scaling_continues_after_an_error(caplog):
    """One replica cannot be created."""
    good = Launcher([BUSY], "good")
    launchers = iter([None, good])

    def next_engine() -> tuple[str, Launcher]:
        if (launcher := next(launchers)) is None:
            raise RuntimeError("no name is left")
        return launcher.name, launcher

    async with started(Launcher([BUSY])) as pool:
        scaling = keep_running(
            lambda: autoscale(pool, pool.engines, next_engine, replace(BOUNDS, min_engines=2)), "scaling"
        )
        await ready_engines_are(pool, 2)
        assert "no name is left" in caplog.text
        await cancel_and_wait(scaling)


async def test_the_last_replica_is_not_replaced_so_that_the_pool_ends(monkeypatch):
    first = Launcher([BUSY, MakeFake(before=refuse_to_start)])
    decisions, wanted = [], Scaler.wanted
    monkeypatch.setattr(Scaler, "wanted", lambda *load: decisions.append(load) or wanted(*load))
    async with scaled(first, settings=ONE_TRY) as pool:
        first.kill()
        await asyncio.wait_for(pool.closed_or_given_up(), HANG_SECONDS)
        before = len(decisions)
        await until(lambda: len(decisions) == before + 2)
        assert len(pool.replicas) == 1


async def test_streams_that_are_not_read_add_no_engine(monkeypatch):
    """They give their slots to others."""
    decisions, wanted = [], Scaler.wanted
    monkeypatch.setattr(Scaler, "wanted", lambda *load: decisions.append(load) or wanted(*load))
    more = Launcher([BUSY], name="engine-1")
    async with scaled(Launcher([BUSY]), more=[more], bounds=replace(BOUNDS, grow_seconds=0.0)) as pool:
        streams = [pool.generate(request(f"s{n}", 100), window=2) for n in range(2)]
        await until(lambda: all(stream.paused for stream in streams))
        await everything(pool.generate(request("read", 10)))
        before = len(decisions)
        await until(lambda: len(decisions) >= before + 2)
        assert [load.streams for _, load, _ in decisions[before + 1 :]] == [0]
        assert not more.processes
