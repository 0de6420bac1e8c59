"""The keeper of engines and fronts. Whole servers of them are in tests/server/test_fronts.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path

from support.fake_engine import INFO
from support.waiting import HANG_SECONDS, until

from voxcpm_grpc.ipc.child_process import Addresses
from voxcpm_grpc.pool.host import engine_host as hosts
from voxcpm_grpc.pool.host.attached import begin, joined
from voxcpm_grpc.pool.host.engine_host import EngineHost
from voxcpm_grpc.settings.schema import SupervisionSettings

HELD_UP_SECONDS = 2.5  # longer than an engine may be silent
SILENCE_SECONDS = 10.0  # of a front here, so that a busy host is no reason to take it for lost


def busy_front(addresses: Addresses, folder: Path) -> None:
    """Runs in a process of its own: a front whose event loop is held up once. It notes that it began and went on."""
    begin("warning")
    (folder / f"{os.getpid()}.began").touch()

    async def serve() -> None:
        async with joined(addresses) as line:
            line.say_ready(INFO)
            await asyncio.sleep(0.5)
            time.sleep(HELD_UP_SECONDS)  # noqa: ASYNC251
            (folder / f"{os.getpid()}.went_on").touch()
            await line.stopped.wait()

    asyncio.run(serve())


async def test_a_front_may_be_silent_for_longer_than_an_engine_but_not_for_good(tmp_path, monkeypatch):
    settings = SupervisionSettings()
    assert settings.silence_seconds < HELD_UP_SECONDS < hosts.FRONT_SILENCE_SECONDS
    monkeypatch.setattr(hosts, "FRONT_SILENCE_SECONDS", SILENCE_SECONDS)
    host = EngineHost({}, settings)
    try:
        await host.start({"front 0": partial(busy_front, folder=tmp_path)}, drain_seconds=1.0)
        await until(lambda: noted(tmp_path, "went_on"))
        [first] = noted(tmp_path, "began")  # it was not replaced by another one meanwhile
        os.kill(first, signal.SIGSTOP)
        await until(lambda: noted(tmp_path, "went_on") - {first})
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANG_SECONDS):
                await host.close()


def noted(folder: Path, what: str) -> set[int]:
    """The processes that have done this."""
    return {int(path.stem) for path in folder.glob(f"*.{what}")}
