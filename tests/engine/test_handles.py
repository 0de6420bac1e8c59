from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing.context import SpawnProcess
from pathlib import Path

import psutil
import pytest
from support.fake_engine import INFO, MakeFake, die_early, load_forever, refuse_to_start, request, start_with_a_bug

from voxcpm_grpc.engine import messages as m
from voxcpm_grpc.engine.handles import ProcessHandle
from voxcpm_grpc.errors import StartupError


@contextlib.asynccontextmanager
async def started(make=None, **options):
    handle = ProcessHandle(make or MakeFake(), **options)
    try:
        await handle.start()
        yield handle
    finally:
        await handle.close()


async def everything(handle):
    async with asyncio.timeout(10):
        return [report async for batch in handle.reports() for report in batch]


async def ended(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        await asyncio.sleep(0.02)
    return False


async def test_an_engine_starts_speaks_and_stops(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handle = ProcessHandle(MakeFake(), name="engine-7")
    assert await handle.start() == INFO
    assert list(tmp_path.iterdir()) == [], "the socket's file is gone once it has its peer"
    handle.post(m.Submit(request("a", 3), 10))
    reports = []
    async with contextlib.aclosing(handle.reports()) as batches:
        async for batch in batches:
            reports += batch
            if isinstance(reports[-1], m.Ended):
                break
    assert [type(report) for report in reports] == [m.Began, m.Spoke, m.Spoke, m.Spoke, m.Ended]
    pid = handle.pid
    await handle.close()
    assert await ended(pid, 0.1)
    await handle.close()  # once more is fine


async def test_the_socket_is_private_and_a_start_can_be_cancelled(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    handle = ProcessHandle(MakeFake(before=load_forever))
    starting = asyncio.create_task(handle.start())
    while not handle.pid:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    [directory] = tmp_path.iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    starting.cancel()
    await asyncio.wait([starting])
    await handle.close()
    assert await ended(handle.pid, 1)
    assert list(tmp_path.iterdir()) == []


async def test_a_start_and_its_end_can_both_be_cancelled(monkeypatch):
    may_start, start = threading.Event(), SpawnProcess.start
    monkeypatch.setattr(SpawnProcess, "start", lambda process: (may_start.wait(10), start(process)))
    handle = ProcessHandle(MakeFake(before=load_forever))
    starting = asyncio.create_task(handle.start())
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the process is being made
    starting.cancel()
    closing = asyncio.create_task(handle.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([starting, closing])
    may_start.set()
    await handle.close()
    assert handle.pid
    assert await ended(handle.pid, 1)


async def test_nobody_waits_for_a_process_that_a_driver_holds(monkeypatch, caplog):
    monkeypatch.setattr("voxcpm_grpc.engine.process.KILLED_SECONDS", 0.2)
    async with started(stop_seconds=0.2) as handle:
        os.kill(handle.pid, signal.SIGSTOP)
        kill = SpawnProcess.kill
        monkeypatch.setattr(
            SpawnProcess, "kill", lambda process: None
        )  # as it is for one in the middle of a device's call
        async with asyncio.timeout(2):
            await handle.close()
        assert f"process {handle.pid}, does not end though it was killed" in caplog.text
        monkeypatch.setattr(SpawnProcess, "kill", kill)
        os.kill(handle.pid, signal.SIGKILL)
        assert await ended(handle.pid, 2)


async def test_loopback_serves_where_a_unix_socket_cannot_be(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 120)  # longer than the address of a Unix socket may be
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    async with started() as handle:
        handle.post(m.GetStats("s"))
        async with contextlib.aclosing(handle.reports()) as batches:
            [report] = await asyncio.wait_for(anext(batches), 5)
        assert isinstance(report, m.Statistics)


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (refuse_to_start, r"^model.safetensors is missing; download the checkpoint again$"),
        (start_with_a_bug, r"could not start: ZeroDivisionError: division by zero"),
        (die_early, r"engine ended with status 7 before it was ready"),
    ],
)
async def test_an_engine_that_cannot_start_says_why(before, words):
    handle = ProcessHandle(MakeFake(before=before))
    with pytest.raises(StartupError, match=words):
        await handle.start()
    await handle.close()
    assert await ended(handle.pid, 1)


async def test_a_start_that_takes_too_long_is_given_up():
    handle = ProcessHandle(MakeFake(before=load_forever), start_seconds=1.0)
    with pytest.raises(StartupError, match="not ready after 1 seconds"):
        await handle.start()
    before = time.monotonic()
    await handle.close()
    assert time.monotonic() - before < 2, "what is still loading gets no grace"
    assert await ended(handle.pid, 1)


async def test_what_cannot_be_pickled_fails_the_start():
    handle = ProcessHandle(lambda: None)
    with pytest.raises(Exception, match="pickle"):
        await handle.start()
    await handle.close()


@pytest.mark.parametrize("begun", [True, False], ids=["of an engine", "not begun"])
def test_a_forgotten_handle_blocks_nobody_and_leaves_no_process(begun):
    """As when its caller fails before it can close it; what refers to itself is found by the garbage collector."""
    pids: list[int | None] = []

    async def begin() -> None:
        handle = ProcessHandle(MakeFake())
        handle.itself = handle  # type: ignore[attr-defined]
        if begun:
            await handle.start()
            handle.post(m.GetStats("unread"))
            pids.append(handle.pid)

    def forget() -> None:
        asyncio.run(begin())
        gc.collect()

    forgetting = threading.Thread(target=forget, daemon=True)  # it would never end, and the test's end wait for it
    forgetting.start()
    forgetting.join(20)
    assert not forgetting.is_alive()
    assert all(asyncio.run(ended(pid, 2)) for pid in pids)


async def test_reports_end_when_the_process_is_killed():
    async with started() as handle:
        handle.post(m.Submit(request("a", 100_000), 100_000))
        indices = []
        async with asyncio.timeout(10), contextlib.aclosing(handle.reports()) as batches:
            async for batch in batches:
                if not indices and any(isinstance(report, m.Spoke) for report in batch):
                    os.kill(handle.pid, signal.SIGKILL)
                indices += [report.event.index for report in batch if isinstance(report, m.Spoke)]
        assert indices == list(range(len(indices)))
        assert indices
        handle.post(m.Cancel("a"))  # goes nowhere, quietly


async def test_last_words_are_heard_after_the_end():
    async with started() as handle:
        handle.post(m.Submit(request("a", 50), 50))
        await asyncio.sleep(0.5)  # it has finished, and nobody has read
        handle.post(m.Stop())
        assert await ended(handle.pid, 5)
        reports = await everything(handle)
        assert sum(isinstance(report, m.Spoke) for report in reports) == 50
        assert isinstance(reports[-1], m.Ended)


async def test_a_step_that_raises_ends_the_process_with_a_status(caplog):
    async with started() as handle:
        handle.post(m.Submit(request("good", 3), 10))
        handle.post(m.Submit(request("bad", 3, "crash"), 10))
        await everything(handle)
        assert "ended with status 1" in caplog.text


async def test_terminate_ends_the_engine_and_interrupt_does_not(caplog):
    async with started() as handle:
        os.kill(handle.pid, signal.SIGINT)
        handle.post(m.GetStats("s"))
        async with contextlib.aclosing(handle.reports()) as batches:
            assert isinstance((await asyncio.wait_for(anext(batches), 5))[0], m.Statistics)
        os.kill(handle.pid, signal.SIGTERM)
        assert await everything(handle) == []
        assert "ended with status 0" in caplog.text


async def test_an_engine_that_hangs_is_killed_after_its_grace():
    handle = ProcessHandle(MakeFake(), stop_seconds=0.3)
    await handle.start()
    handle.post(m.Submit(request("a", 3, "hang"), 10))
    await asyncio.sleep(0.2)
    before = time.monotonic()
    await handle.close()
    assert 0.2 < time.monotonic() - before < 3
    assert await ended(handle.pid, 1)


FRONT = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from support import fake_engine
from voxcpm_grpc.engine.handles import ProcessHandle

async def main():
    handle = ProcessHandle(fake_engine.MakeFake(before={before}))
    starting = asyncio.create_task(handle.start())
    while not handle.pid:
        await asyncio.sleep(0.01)
    {wait}
    print(handle.pid, flush=True)
    await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize(("before", "wait"), [("None", "await starting"), ("fake_engine.load_forever", "pass")])
async def test_an_engine_ends_when_its_front_is_killed(tmp_path, before, wait):
    script = tmp_path / "front.py"
    script.write_text(FRONT.format(tests=str(Path(__file__).parents[1]), before=before, wait=wait))
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # a killed front leaves its socket's directory behind
    front = await asyncio.create_subprocess_exec(
        sys.executable, str(script), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        assert front.stdout
        pid = int(await asyncio.wait_for(front.stdout.readline(), 20))
        if wait == "pass":
            await asyncio.sleep(1.0)  # into its load
    finally:
        front.kill()
        await front.wait()
    assert await ended(pid, 2.0)
