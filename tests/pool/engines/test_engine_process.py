"""Engines in processes of this host: start, messages and end."""

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
from collections.abc import AsyncIterator
from multiprocessing.context import SpawnProcess
from pathlib import Path

import psutil
import pytest
import zmq
from support.doubles.fake_engine import (
    INFO,
    CompileForever,
    FakeEngine,
    LoadForever,
    MakeFake,
    TerminateInThread,
    carries,
    die_early,
    refuse_to_start,
    request,
    start_with_a_bug,
)
from support.servers.processes import is_gone
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until, wait_until

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.events import Admitted, AudioChunk, Finished
from voxcpm_grpc.ipc import messages as m
from voxcpm_grpc.ipc.sockets import FrontSocket
from voxcpm_grpc.pool.engines.local import EngineProcess


@contextlib.asynccontextmanager
async def started(make=None, **options):
    engine = EngineProcess(make or MakeFake(), **options)
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


@contextlib.asynccontextmanager
async def connected(engine: EngineProcess) -> AsyncIterator[FrontSocket]:
    """A front of an engine, which is told the end of it."""
    front = engine.connect()

    async def follow() -> None:
        async for _ in engine.reports():
            pass
        front.end()

    following = asyncio.create_task(follow())
    try:
        yield front
    finally:
        following.cancel()
        await asyncio.wait([following])
        front.close()


async def reports_of(front: FrontSocket):
    """All reports but statistics, one by one."""
    async with asyncio.timeout(HANG_SECONDS), contextlib.aclosing(front.reports()) as batches:
        async for batch in batches:
            for report in batch:
                if not isinstance(report, m.EngineStats):
                    yield report


async def finishes_a_request(front: FrontSocket) -> bool:
    """True if the engine handles a request. Reads all its reports."""
    front.post(m.Submit(request("s", 1), 1))
    async with contextlib.aclosing(reports_of(front)) as reports:
        async for report in reports:
            if carries(report, Finished):
                return True
    return False


def pid_of(engine: EngineProcess) -> int:
    assert engine.pid
    return engine.pid


async def test_an_engine_starts_handles_a_request_and_stops(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = EngineProcess(MakeFake(), name="engine-7")
    assert await engine.start() == INFO
    reports = []
    async with connected(engine) as front:
        front.post(m.Submit(request("a", 3), 10))
        async with contextlib.aclosing(reports_of(front)) as stream:
            async for report in stream:
                reports.append(report)
                if carries(report, Finished):
                    break
    assert [type(report.body) for report in reports] == [Admitted, AudioChunk, AudioChunk, AudioChunk, Finished]
    pid = engine.pid
    await engine.close()
    assert is_gone(pid)
    assert list(tmp_path.iterdir()) == [], "the folder of its sockets is removed"
    await engine.close()  # a second time


async def test_the_socket_is_private_and_a_start_can_be_cancelled(tmp_path, monkeypatch):
    loading, sockets = tmp_path / "loading", tmp_path / "sockets"
    loading.mkdir()
    sockets.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
    engine = EngineProcess(MakeFake(before=LoadForever(loading)))
    starting = asyncio.create_task(engine.start())
    await until(lambda: [*loading.iterdir()])
    [directory] = sockets.iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    starting.cancel()
    await asyncio.wait([starting])
    await engine.close()
    assert is_gone(engine.pid)
    assert list(sockets.iterdir()) == []


@pytest.mark.parametrize("ends", ["close", "terminate"])
async def test_the_end_of_a_start_waits_for_no_compiler_and_leaves_none(tmp_path, ends):
    engine = EngineProcess(MakeFake(before=CompileForever(tmp_path)))
    starting = asyncio.create_task(engine.start())
    try:
        await until(lambda: len([*tmp_path.iterdir()]) == 2)
        if ends == "terminate":
            os.kill(pid_of(engine), signal.SIGTERM)
            with pytest.raises(StartupError, match="ended with status 0 before it was ready"):
                await asyncio.wait_for(starting, HANG_SECONDS)
    finally:
        starting.cancel()
        await asyncio.wait([starting])
        if ends == "close":
            await engine.close()
    await until(lambda: all(is_gone(int(file.name)) for file in tmp_path.iterdir()))
    await engine.close()


async def test_a_start_and_a_close_can_both_be_cancelled(tmp_path, monkeypatch):
    may_start, start = threading.Event(), SpawnProcess.start
    monkeypatch.setattr(SpawnProcess, "start", lambda process: (may_start.wait(HANG_SECONDS), start(process)))
    engine = EngineProcess(MakeFake(before=LoadForever(tmp_path)))
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the process starts now
    starting.cancel()
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([starting, closing])
    may_start.set()
    await engine.close()
    assert engine.pid
    assert is_gone(engine.pid)


async def test_close_does_not_wait_for_a_process_that_a_driver_blocks(monkeypatch, caplog):
    monkeypatch.setattr("voxcpm_grpc.ipc.process.KILL_SECONDS", 0.2)
    async with started(stop_seconds=0.2) as engine:
        os.kill(pid_of(engine), signal.SIGSTOP)
        kill = SpawnProcess.kill
        # A process in a call of a device's driver ignores the signal.
        monkeypatch.setattr(SpawnProcess, "kill", lambda process: None)
        async with asyncio.timeout(HANG_SECONDS):
            await engine.close()
        assert f"process {engine.pid}, was killed and does not end" in caplog.text
        monkeypatch.setattr(SpawnProcess, "kill", kill)
        os.kill(pid_of(engine), signal.SIGKILL)
        await until(lambda: is_gone(engine.pid))


async def test_the_loopback_interface_replaces_unix_sockets_that_cannot_be_created(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 120)  # longer than the address of a Unix socket may be
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    async with started() as engine, connected(engine) as front:
        assert engine.address.startswith("tcp://127.0.0.1:")
        assert await finishes_a_request(front)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (refuse_to_start, r"^model.safetensors is missing; download the checkpoint again$"),
        (start_with_a_bug, r"could not start: ZeroDivisionError: division by zero"),
        (die_early, r"engine ended with status 7 before it was ready"),
    ],
)
async def test_the_error_of_a_failed_start_has_its_cause(before, message):
    engine = EngineProcess(MakeFake(before=before))
    with pytest.raises(StartupError, match=message):
        await engine.start()
    await engine.close()
    assert is_gone(engine.pid)


async def test_a_start_that_takes_too_long_fails(tmp_path):
    engine = EngineProcess(MakeFake(before=LoadForever(tmp_path)), start_seconds=1.0, stop_seconds=NEVER_SECONDS)
    with pytest.raises(StartupError, match="not ready after 1 seconds"):
        await engine.start()
    async with asyncio.timeout(HANG_SECONDS):  # a process that still loads is killed at once
        await engine.close()
    assert is_gone(engine.pid)


async def test_a_factory_that_cannot_be_pickled_fails_the_start():
    engine = EngineProcess(lambda: FakeEngine())
    with pytest.raises(Exception, match="pickle"):
        await engine.start()
    await engine.close()


@pytest.mark.parametrize("is_started", [True, False], ids=["started", "not started"])
def test_a_handle_that_is_not_closed_blocks_nothing_and_leaves_no_process(is_started):
    """Its owner may fail before it can close it. An object with a reference to itself needs the garbage collector."""
    pids: list[int] = []

    async def use() -> None:
        engine = EngineProcess(MakeFake())
        engine.itself = engine  # type: ignore[attr-defined]
        if is_started:
            await engine.start()
            engine.connect().post(m.Submit(request("unread", 1), 1))
            pids.append(pid_of(engine))

    def use_and_collect() -> None:
        asyncio.run(use())
        gc.collect()

    thread = threading.Thread(target=use_and_collect, daemon=True)  # a daemon, so that a failure does not hang the test
    thread.start()
    thread.join(HANG_SECONDS)
    assert not thread.is_alive()
    wait_until(lambda: all(is_gone(pid) for pid in pids))


async def test_reports_end_when_the_process_is_killed():
    async with started() as engine, connected(engine) as front:
        front.post(m.Submit(request("a", 100_000), 100_000))
        end = 0
        async for report in reports_of(front):
            if isinstance(report, m.CallEvent) and isinstance(report.body, AudioChunk):
                if not end:
                    os.kill(pid_of(engine), signal.SIGKILL)
                assert report.body.index == end
                end = report.body.end
        assert end
        front.post(m.Cancel("a"))  # dropped


async def test_the_last_reports_arrive_after_the_end_of_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr("voxcpm_grpc.ipc.sockets.LAST_REPORTS_SECONDS", 2.0)
    finished = tmp_path / "finished"
    async with started() as engine, connected(engine) as front:
        front.post(m.Submit(request("a", 50, f"then {finished}"), 50))
        await until(finished.exists)  # the engine has finished, and its reports are unread
        engine.post(m.Stop())
        await until(lambda: not psutil.pid_exists(pid_of(engine)))  # the engine has collected its status
        reports = [report async for report in reports_of(front)]
        assert sum(carries(report, AudioChunk) for report in reports) == 50
        assert carries(reports[-1], Finished)


async def test_an_error_in_a_step_ends_the_process_with_status_1(caplog):
    async with started() as engine, connected(engine) as front:
        front.post(m.Submit(request("good", 3), 10))
        front.post(m.Submit(request("bad", 3, "crash"), 10))
        async for _ in reports_of(front):
            pass
        assert "ended with status 1" in caplog.text


async def test_terminate_ends_the_engine_and_interrupt_does_not(caplog):
    async with started() as engine, connected(engine) as front:
        os.kill(pid_of(engine), signal.SIGINT)
        assert await finishes_a_request(front)
        os.kill(pid_of(engine), signal.SIGTERM)
        assert [report async for report in reports_of(front)] == []
        assert "ended with status 0" in caplog.text


async def test_an_idle_engine_ends_when_another_of_its_threads_receives_the_signal(tmp_path, caplog):
    terminate = tmp_path / "terminate"
    async with started(MakeFake(before=TerminateInThread(terminate))) as engine, connected(engine) as front:
        assert await finishes_a_request(front)
        terminate.touch()
        assert [report async for report in reports_of(front)] == []
        assert "ended with status 0" in caplog.text


async def test_the_work_of_a_front_that_has_ended_makes_room_for_that_of_another():
    async with started(MakeFake(slots=1)) as engine:
        lost, front = FrontSocket(engine.address, "a"), FrontSocket(engine.address, "b")
        async with contextlib.aclosing(reports_of(lost)) as reports:
            lost.post(m.Submit(request("long", 100_000), 100_000))
            while not carries(await anext(reports), AudioChunk):
                pass
        front.post(m.Submit(request("next", 2), 2))  # waits for the only slot
        engine.post(m.Detach("a"))
        async with contextlib.aclosing(reports_of(front)) as reports:
            while not carries(await anext(reports), Finished):
                pass
        lost.close()
        front.close()


async def test_an_engine_does_no_work_for_a_process_without_its_key():
    """Every user of a host can connect to its loopback interface."""
    async with started(MakeFake(slots=1)) as engine, connected(engine) as front:
        where = engine.address.rpartition("#")[0]
        stranger = FrontSocket(f"{where}#", "stranger")
        stranger.post(m.Submit(request("taken", 100_000), 100_000))
        async with contextlib.aclosing(stranger.reports()) as reports:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await anext(reports)
        assert await finishes_a_request(front), "the slot is free"
        stranger.close()


async def test_an_engine_ignores_messages_of_another_number_of_parts():
    async with started() as engine, connected(engine) as front:
        with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
            stranger.connect(engine.address.rpartition("#")[0])
            for parts in ([b""], [b"", b""], [b"a", b"b", b"c"]):
                stranger.send_multipart(parts)
            assert await finishes_a_request(front)
            assert await finishes_a_request(front)


async def test_the_folder_of_the_sockets_may_have_any_name(tmp_path, monkeypatch):
    folder = tmp_path / "a #1"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    async with started() as engine, connected(engine) as front:
        assert await finishes_a_request(front)


async def test_an_engine_that_does_not_stop_in_time_is_killed():
    engine = EngineProcess(MakeFake(), stop_seconds=0.3)
    await engine.start()
    os.kill(pid_of(engine), signal.SIGSTOP)
    loop = asyncio.get_running_loop()
    before = loop.time()
    async with asyncio.timeout(HANG_SECONDS):
        await engine.close()
    assert loop.time() - before >= 0.3
    assert is_gone(engine.pid)


FRONT = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from support.doubles import fake_engine
from voxcpm_grpc.pool.engines.local import EngineProcess
from voxcpm_grpc.events import Admitted, AudioChunk, Finished

async def main():
    folder = Path(sys.argv[1])
    engine = EngineProcess(fake_engine.MakeFake(before=fake_engine.{before}(folder)))
    starting = asyncio.create_task(engine.start())
    while not [*folder.iterdir()]:
        await asyncio.sleep(0.01)
    {wait}
    print(engine.pid, flush=True)
    await asyncio.sleep({seconds})

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.mark.parametrize(("before", "wait"), [("NotePid", "await starting"), ("CompileForever", "pass")])
async def test_an_engine_ends_when_its_front_is_killed(tmp_path, before, wait):
    script, loading = tmp_path / "front.py", tmp_path / "loading"
    loading.mkdir()
    tests = str(Path(__file__).parents[2])
    script.write_text(FRONT.format(tests=tests, before=before, wait=wait, seconds=NEVER_SECONDS))
    environment = os.environ | {"TMPDIR": str(tmp_path)}  # a killed front leaves the folder of its socket behind
    front = await asyncio.create_subprocess_exec(
        sys.executable, str(script), str(loading), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    try:
        assert front.stdout
        pid = int(await asyncio.wait_for(front.stdout.readline(), HANG_SECONDS))
    finally:
        front.kill()
        await front.wait()
    await until(lambda: all(is_gone(one) for one in (pid, *(int(file.name) for file in loading.iterdir()))))
