"""The host of engines and fronts. Whole servers are tested in tests/system/processes/test_fronts.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path

from support.doubles.fake_engine import INFO
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.ipc.sockets import Addresses
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.pool.engines import host as hosts
from voxcpm_grpc.pool.engines.host import Host
from voxcpm_grpc.pool.engines.host_link import connected_to_host, set_up
from voxcpm_grpc.settings.engine import SupervisionSettings

BLOCKED_SECONDS = 2.5  # longer than the silence that an engine is allowed
SILENCE_SECONDS = 10.0  # the silence that a front is allowed here; a busy machine never exceeds it


def blocked_front(addresses: Addresses, folder: Path, restarted: bool) -> None:
    """The main function of a front whose event loop is blocked once. It creates files when it starts and goes on."""
    set_up(LogOptions("warning"))
    (folder / f"{os.getpid()}.started").touch()

    async def serve() -> None:
        async with connected_to_host(addresses) as host:
            host.send_ready(INFO)
            await asyncio.sleep(0.5)
            time.sleep(BLOCKED_SECONDS)  # noqa: ASYNC251
            (folder / f"{os.getpid()}.went_on").touch()
            await host.stopped.wait()

    asyncio.run(serve())


async def test_a_front_may_be_silent_for_longer_than_an_engine_but_not_forever(tmp_path, monkeypatch):
    settings = SupervisionSettings()
    assert settings.silence_seconds < BLOCKED_SECONDS < hosts.FRONT_SILENCE_SECONDS
    monkeypatch.setattr(hosts, "FRONT_SILENCE_SECONDS", SILENCE_SECONDS)
    host = Host([], settings)
    try:
        await host.start({"front 0": partial(blocked_front, folder=tmp_path)}, drain_seconds=1.0)
        await until(lambda: processes(tmp_path, "went_on"))
        [first] = processes(tmp_path, "started")  # it was not replaced meanwhile
        os.kill(first, signal.SIGSTOP)
        await until(lambda: processes(tmp_path, "went_on") - {first})
    finally:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HANG_SECONDS):
                await host.close()


def processes(folder: Path, suffix: str) -> set[int]:
    """The ids of the processes that have created this file."""
    return {int(path.stem) for path in folder.glob(f"*.{suffix}")}
