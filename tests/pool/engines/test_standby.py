"""The standby process becomes the engine that replaces a lost one, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from support.doubles.fake_engine import LoadForever, MakeFake, NotePid
from support.engines.standby import KEPT, engines, prepared
from support.servers.processes import children, command_of, is_gone, open_files
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_grpc.pool.engines.local import EngineProcess
from voxcpm_grpc.pool.engines.standby import Standby
from voxcpm_grpc.worker.standby import NAME, StandbyProcess


async def test_the_standby_process_becomes_the_engine_that_replaces_a_lost_one(tmp_path, caplog):
    caplog.set_level("INFO")
    async with engines(Standby(NotePid(tmp_path), KEPT)) as running:
        waiting = await prepared(running.standby)
        assert command_of(psutil.Process(waiting)) == f"voxcpm-grpc {NAME}"
        os.kill(waiting, signal.SIGINT)  # Ctrl-C of a terminal reaches it
        await running.lose("engine 0")
        assert running.pid() == waiting
        assert command_of(psutil.Process(waiting)) == "voxcpm-grpc engine 0"
        assert f"engine 0 starts in the standby process, {waiting}" in caplog.text
        await running.speak()
        assert running.pool.replicas[0].restarts.count == 1
        assert await prepared(running.standby) != waiting
    assert len([*tmp_path.iterdir()]) == 2, "each process was prepared once"


async def test_a_standby_process_that_ends_is_replaced_and_no_engine_notices(tmp_path, caplog):
    async with engines(Standby(NotePid(tmp_path), KEPT, retry_seconds=0.05)) as running:
        engine, waiting = running.pid(), await prepared(running.standby)
        os.kill(waiting, signal.SIGKILL)
        await until(lambda: running.standby.pid not in (waiting, None))
        assert f"the {NAME} process ended with status -9" in caplog.text
        assert running.pid() == engine
        await running.speak()


@pytest.mark.parametrize(
    ("kept", "device", "expected"),
    [("auto", "cpu", 0), ("auto", "cuda:0", 1), ("off", "cuda:0", 0), ("on", "cpu", 1)],
)
async def test_the_setting_says_for_which_devices_a_process_is_kept(tmp_path, kept, device, expected):
    before, files = children(), open_files()
    standby = Standby(NotePid(tmp_path), kept)
    standby.keep(device)
    if expected:
        await prepared(standby)
    assert len(children() - before) == expected
    await standby.close()
    assert children() <= before
    assert open_files() <= files
    await standby.close()  # a second time


async def test_a_pool_that_closes_ends_a_process_that_is_being_prepared(tmp_path):
    before = children()
    async with engines(Standby(LoadForever(tmp_path), KEPT)) as running:
        await until(lambda: [*tmp_path.iterdir()])
        await running.speak()
    assert children() <= before


async def test_a_factory_that_cannot_be_pickled_leaves_the_standby_process(tmp_path):
    standby = Standby(NotePid(tmp_path), KEPT)
    standby.keep("cpu")
    waiting = await prepared(standby)
    handle = EngineProcess(lambda: MakeFake()(), standby=standby)
    with pytest.raises(Exception, match="pickle"):
        await handle.start()
    assert await prepared(standby) == waiting
    await handle.close()
    await standby.close()


@pytest.mark.parametrize("kept", ["off", "on"])
async def test_the_first_engine_starts_in_a_process_that_began_before_it(tmp_path, kept):
    first = StandbyProcess(NotePid(tmp_path))
    async with engines(Standby(NotePid(tmp_path), kept, first=first), MakeFake(), MakeFake()) as running:
        assert running.pid("engine 0") == first.process.pid
        assert running.pid("engine 1") != first.process.pid
        await running.speak()
        await running.lose("engine 0")
        await running.speak()


async def test_a_first_process_that_has_ended_is_no_engine(tmp_path):
    first = StandbyProcess(NotePid(tmp_path))
    os.kill(first.process.pid or 0, signal.SIGKILL)
    first.process.join()
    async with engines(Standby(NotePid(tmp_path), "off", first=first)) as running:
        assert running.pid() != first.process.pid
        await running.speak()


async def test_a_first_process_that_no_engine_takes_ends_with_the_others(tmp_path):
    before, files = children(), open_files()
    standby = Standby(NotePid(tmp_path), "off", first=StandbyProcess(LoadForever(tmp_path)))
    assert len(children() - before) == 1
    await standby.close()
    assert children() <= before
    assert open_files() <= files


OWNER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from support.doubles import fake_engine
from voxcpm_grpc.pool.engines.standby import Standby

async def main():
    folder = Path(sys.argv[1])
    standby = Standby(fake_engine.{prepare}(folder), "on")
    standby.keep("cpu")
    while not [*folder.iterdir()] or {waits} and not standby.pid:
        await asyncio.sleep(0.01)
    print([*folder.iterdir()][0].name, flush=True)
    await asyncio.sleep({seconds})

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize(("prepare", "waits"), [("NotePid", True), ("LoadForever", False)])
async def test_the_standby_process_ends_when_its_owner_is_killed(tmp_path, prepare, waits):
    script, folder = tmp_path / "owner.py", tmp_path / "folder"
    folder.mkdir()
    tests = str(Path(__file__).parents[2])
    script.write_text(OWNER.format(tests=tests, prepare=prepare, waits=waits, seconds=NEVER_SECONDS))
    owner = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert owner.stdout
        pid = int(await asyncio.wait_for(owner.stdout.readline(), HANG_SECONDS))
    finally:
        owner.kill()
        await owner.wait()
    await until(lambda: is_gone(pid))
