"""Engines and their standby process are lost together, in any order."""

from __future__ import annotations

import asyncio
import os
import signal

from support.doubles.fake_engine import LoadForever, MakeFake, NotePid, start_with_a_bug
from support.doubles.pools import health_is
from support.engines.standby import KEPT, engines, prepared
from support.servers.processes import is_gone
from support.servers.waiting import NEVER_SECONDS, until

from voxcpm_grpc.pool.engines.local import EngineProcess
from voxcpm_grpc.pool.engines.standby import Standby


async def test_of_two_engines_that_are_lost_at_once_one_is_spawned(tmp_path):
    async with engines(Standby(NotePid(tmp_path), KEPT), MakeFake(), MakeFake()) as running:
        waiting = await prepared(running.standby)
        await running.lose("engine 0", "engine 1")
        assert [running.pid("engine 0"), running.pid("engine 1")].count(waiting) == 1
        await running.speak()
        assert await prepared(running.standby) not in (running.pid("engine 0"), running.pid("engine 1"))


async def test_an_engine_is_spawned_while_the_standby_process_is_missing_or_not_prepared(tmp_path):
    missing, unprepared = tmp_path / "missing", tmp_path / "unprepared"
    missing.mkdir()
    unprepared.mkdir()
    async with engines(Standby(NotePid(missing), KEPT, retry_seconds=NEVER_SECONDS)) as running:
        waiting = await prepared(running.standby)
        os.kill(waiting, signal.SIGKILL)
        await until(lambda: running.standby.pid is None)
        await running.lose("engine 0")
        await running.speak()
    async with engines(Standby(LoadForever(unprepared), KEPT)) as running:
        await until(lambda: [*unprepared.iterdir()])
        [preparing] = unprepared.iterdir()
        await running.lose("engine 0")
        assert running.pid() != int(preparing.name)
        await running.speak()
    assert is_gone(int(preparing.name))


async def test_an_engine_whose_standby_process_ends_at_once_is_tried_again(tmp_path):
    async with engines(Standby(NotePid(tmp_path), KEPT)) as running:
        waiting = await prepared(running.standby)
        os.kill(waiting, signal.SIGSTOP)  # it takes the order, and dies before it follows it
        running.kill()
        await until(lambda: running.pid() == waiting)
        os.kill(waiting, signal.SIGKILL)
        await health_is(running.pool, True)
        await running.speak()


async def test_a_preparation_that_fails_is_logged_and_harms_no_engine(capfd):
    async with engines(Standby(start_with_a_bug, KEPT, retry_seconds=NEVER_SECONDS)) as running:
        log = []
        await until(lambda: log.append(capfd.readouterr().err) or "ZeroDivisionError" in "".join(log))
        await running.lose("engine 0")
        await running.speak()


async def test_no_process_is_prepared_while_an_engine_starts(tmp_path):
    prepared_, loading = tmp_path / "prepared", tmp_path / "loading"
    prepared_.mkdir()
    loading.mkdir()
    standby = Standby(NotePid(prepared_), KEPT)
    async with engines(standby) as running:
        await prepared(standby)
        second = EngineProcess(MakeFake(before=LoadForever(loading)), name="engine 1", standby=standby)
        starting = asyncio.create_task(second.start())
        await until(lambda: [*loading.iterdir()])
        await running.lose("engine 0")
        assert len([*prepared_.iterdir()]) == 1
        starting.cancel()
        await asyncio.wait([starting])
        await second.close()
        await prepared(standby)
        assert len([*prepared_.iterdir()]) == 2
