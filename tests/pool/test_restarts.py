"""Calls that wait for the restart of an engine, and the time that they are told."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.doubles.fake_engine import MakeFake, refuse_to_start, request
from support.doubles.pools import Launcher, RecordedPool, everything, health_is, patient, started
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until, wait_until

from voxcpm_grpc.errors import Exhausted, Reason, Unavailable
from voxcpm_grpc.events import Admitted, Finished
from voxcpm_grpc.request import Role

QUICK = patient(restart_seconds=0.1)


def wait_for(file: Path) -> None:
    wait_until(file.exists, NEVER_SECONDS)


@contextlib.asynccontextmanager
async def restarting(may_start: Path, **options) -> AsyncIterator[RecordedPool]:
    """A pool whose only engine is lost. The next one starts when the file `may_start` exists."""
    engine = Launcher([MakeFake(**options), MakeFake(before=partial(wait_for, may_start), **options)])
    async with started(engine, settings=QUICK) as pool:
        engine.kill()
        await health_is(pool, False)
        yield pool


async def failure(call) -> Exhausted | Unavailable:
    with pytest.raises((Exhausted, Unavailable)) as caught:
        await everything(call)
    return caught.value


async def test_calls_wait_for_the_restart_of_the_only_engine(tmp_path):
    may_start = tmp_path / "may start"
    async with restarting(may_start) as pool:
        calls = [pool.generate(request(f"r{number}", 3), max_wait=NEVER_SECONDS) for number in range(5)]
        encoding = asyncio.create_task(pool.encode(np.zeros(320, np.float32), Role.PROMPT))
        checking = asyncio.create_task(pool.check(request("c", 3)))
        await until(lambda: pool.waiting_for_engine == len(calls))
        await asyncio.sleep(0.05)
        assert not encoding.done() and not checking.done() and all(pool.waits_for_engine(call) for call in calls)
        may_start.touch()
        for admitted, *_, finished in await asyncio.gather(*map(everything, calls)):
            assert isinstance(admitted, Admitted) and admitted.queue_seconds >= 0.05, "it counts the whole wait"
            assert isinstance(finished, Finished)
        async with asyncio.timeout(HANG_SECONDS):
            await encoding
            await checking
        assert not pool.waiting_for_engine


async def test_a_call_of_a_lost_engine_waits_for_the_next_one(tmp_path):
    may_speak = tmp_path / "may speak"
    engine = Launcher([MakeFake()])
    async with started(engine, settings=QUICK) as pool:
        call = pool.generate(request("a", 3, f"after {may_speak}"), max_wait=NEVER_SECONDS)
        assert isinstance(await anext(call), Admitted)
        engine.kill()
        may_speak.touch()
        assert isinstance((await everything(call))[-1], Finished)


async def test_a_call_that_waits_for_an_engine_keeps_the_limit_that_its_reader_sets_meanwhile(tmp_path):
    may_start = tmp_path / "may start"
    async with restarting(may_start) as pool:
        call = pool.generate(request("a", 30), window=30, first_limit=1, max_wait=NEVER_SECONDS)
        call.allow(30)
        may_start.touch()
        assert isinstance((await everything(call))[-1], Finished)


async def test_a_call_of_a_lost_engine_keeps_its_limit_on_the_next_one(tmp_path):
    may_speak = tmp_path / "may speak"
    engine = Launcher([MakeFake()])
    async with started(engine, settings=QUICK) as pool:
        call = pool.generate(request("a", 30, f"after {may_speak}"), window=30, first_limit=1, max_wait=NEVER_SECONDS)
        assert isinstance(await anext(call), Admitted)
        call.allow(30)
        engine.kill()
        may_speak.touch()
        assert isinstance((await everything(call))[-1], Finished)


async def test_a_call_that_cannot_wait_is_told_when_an_engine_is_expected(tmp_path):
    async with restarting(tmp_path / "never") as pool:
        [replica] = pool.replicas
        replica.restarts.expect(40.0)
        error = await failure(pool.generate(request("a", 3), max_wait=30.0))
        assert isinstance(error, Unavailable) and error.reason is Reason.NO_ENGINE
        assert error.retry_after == pytest.approx(40.0, abs=5.0)
        assert re.search(r"expected in (40|3[5-9]) s", error.message)


async def test_a_wait_ends_in_time_with_the_time_that_the_restart_still_takes(tmp_path):
    async with restarting(tmp_path / "never") as pool:
        [replica] = pool.replicas
        replica.restarts.expect(0.0)
        call = pool.generate(request("a", 3), max_wait=0.2)
        assert pool.waits_for_engine(call)
        replica.restarts.expect(25.0)
        error = await failure(call)
        assert isinstance(error, Unavailable) and error.retry_after == pytest.approx(25.0, abs=5.0)


async def test_no_more_streams_wait_than_the_engine_takes(tmp_path):
    async with restarting(tmp_path / "never", slots=2, queue=1) as pool:
        calls = [pool.generate(request(f"r{number}", 3), max_wait=NEVER_SECONDS) for number in range(3)]
        error = await failure(pool.generate(request("more", 3), max_wait=NEVER_SECONDS))
        assert isinstance(error, Exhausted) and error.reason is Reason.QUEUE_FULL
        assert error.details == {"waiting": "3", "limit": "3"}
        await calls[0].aclose()
        following = pool.generate(request("following", 3), max_wait=NEVER_SECONDS)
        assert pool.waits_for_engine(following), "a call that was closed has made room"


async def test_waiting_calls_end_when_no_engine_will_start():
    engine = Launcher([MakeFake(), MakeFake(before=refuse_to_start)])
    async with started(engine, settings=patient(restart_seconds=0.1, restart_limit=2)) as pool:
        engine.kill()
        await health_is(pool, False)
        error = await failure(pool.generate(request("a", 3), max_wait=NEVER_SECONDS))
        assert "none is being started" in error.message
        assert math.isinf(pool.replicas[0].restarts.seconds_left)


async def test_waiting_calls_end_with_their_pool(tmp_path):
    async with restarting(tmp_path / "never") as pool:
        call = pool.generate(request("a", 3), max_wait=NEVER_SECONDS)
        await pool.close()
        assert isinstance(await failure(call), Unavailable)


async def test_an_engine_that_is_added_has_not_restarted():
    first, second = Launcher([MakeFake()], "a"), Launcher([MakeFake()], "b")
    async with started(first, settings=QUICK) as pool:
        added = pool.add(second)
        await until(lambda: added.ready)
        assert added.restarts.count == 0
        second.kill()
        await until(lambda: added.ready and len(second.processes) == 2)
        assert [replica.restarts.count for replica in pool.replicas] == [0, 1]
