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

from voxcpm_grpc.config import SupervisionSettings
from voxcpm_grpc.engine.attached import begin, joined
from voxcpm_grpc.engine.host import EngineHost
from voxcpm_grpc.engine.process import Addresses

HELD_UP_SECONDS = 2.5  # longer than an engine may be silent


def busy_front(addresses: Addresses, folder: Path) -> None:
    """Runs in a process of its own: a front whose event loop is held up once."""
    begin("warning")

    async def serve() -> None:
        async with joined(addresses) as line:
            line.say_ready(INFO)
            await asyncio.sleep(0.5)
            time.sleep(HELD_UP_SECONDS)  # noqa: ASYNC251
            (folder / str(os.getpid())).touch()
            await line.stopped.wait()

    asyncio.run(serve())


async def test_a_front_may_be_silent_for_longer_than_an_engine_but_not_for_good(tmp_path):
    host = EngineHost({}, SupervisionSettings())
    try:
        started = time.monotonic()
        await host.start({"front 0": partial(busy_front, folder=tmp_path)}, drain_seconds=1.0)
        first = await appeared(tmp_path)
        assert time.monotonic() - started < 2 * HELD_UP_SECONDS + 5, "it was not replaced by another one meanwhile"
        os.kill(first, signal.SIGSTOP)
        assert await appeared(tmp_path, first) != first
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await host.close()


async def appeared(folder: Path, *before: int) -> int:
    """The process that has left its number, and only one."""
    async with asyncio.timeout(20):
        while not (found := left_in(folder) - {*before}):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    [pid] = found
    return pid


def left_in(folder: Path) -> set[int]:
    return {int(path.name) for path in folder.iterdir()}
