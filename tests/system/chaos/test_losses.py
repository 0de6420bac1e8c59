"""Engines that hang, crash in a step or are killed, and those that take their place."""

from __future__ import annotations

import asyncio
import signal

import psutil
import pytest
from support.clients.whole_streams import assert_whole, refused, speaking, until_error
from support.doubles.fake_engine import MakeFake, request
from support.doubles.pools import Launcher, all_ready, everything, health_is, indexes_of, patient, pool_of, started
from support.servers.waiting import until

QUICK = patient(restart_seconds=0.2)
SILENCE = 5.0  # seconds; a busy machine never delays a heartbeat so long


async def test_a_crash_in_a_step_ends_the_request_alone_and_the_replica_restarts():
    engine = Launcher([MakeFake()])
    async with started(engine, settings=QUICK) as pool:
        good = await speaking(pool, "good", 2000)
        bad = pool.generate(request("bad", 3, "crash"))
        with refused():
            await everything(bad)
        assert indexes_of(await everything(good)) == list(range(1, 2000))
        await health_is(pool, True)
        assert_whole(await everything(pool.generate(request("next", 3))), 3)
        [replica] = pool.replicas
        assert replica.restarts.count == 2, "the bad request had two engines"


@pytest.mark.parametrize("idle", [True, False])
async def test_a_stopped_process_is_noticed_killed_and_replaced(idle):
    engine = Launcher([MakeFake(step_seconds=0.002)])
    async with started(engine, settings=patient(silence_seconds=SILENCE, restart_seconds=0.2)) as pool:
        stream = None if idle else await speaking(pool, "a", 500)
        pid = engine.pid
        engine.kill(signal.SIGSTOP)
        await health_is(pool, False)
        if stream:
            assert indexes_of(await everything(stream)) == list(range(1, 500))
        await health_is(pool, True)
        assert engine.pid != pid
        assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    "make",
    [MakeFake(slowest_step=0.07), MakeFake(slowest_step=0.3, device="cuda:0")],
    ids=["a quick engine", "a slow one on a GPU"],
)
async def test_a_step_without_end_is_noticed(make):
    async with pool_of(make, settings=patient(step_seconds=None, restart_seconds=0.2)) as pool:
        with refused():
            await everything(pool.generate(request("a", 3, "hang")))
        await health_is(pool, True)


async def test_a_lost_engine_gets_no_calls_and_a_restarted_one_gets_its_share():
    a, b = (Launcher([MakeFake()], name) for name in "ab")
    async with started(a, b, settings=QUICK) as pool:
        streams = [await speaking(pool, f"s{i}") for i in range(6)]
        lost = sum(len(replica.calls) for replica in pool.replicas if replica.name == "a")
        assert 0 < lost < 6
        a.kill()
        assert await asyncio.gather(*map(until_error, streams)) == [None] * 6
        assert pool.continuations == lost
        for i in range(10):
            assert_whole(await everything(pool.generate(request(f"next{i}", 3))), 3)
        await all_ready(pool)
        before = pool.stats_by_engine()
        await asyncio.gather(*(everything(pool.generate(request(f"later{i}", 50))) for i in range(10)))
        after = pool.stats_by_engine()
        assert all(after[name].steps > before[name].steps for name in ("a", "b"))
        await until(lambda: not any(stats.running for stats in pool.stats_by_engine().values()))
    assert not any(launcher.is_running for launcher in (a, b))
