"""Pools of fake engines, and the statistics of these engines."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import cast

from support.doubles.fake_engine import request
from support.engines.recorded_stats import RecordStats, recorded_stats
from support.servers.processes import is_gone
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_grpc.events import AudioChunk
from voxcpm_grpc.ipc.sockets import Addresses
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.pool.replica import Replica
from voxcpm_grpc.request import Stats
from voxcpm_grpc.settings.engine import SupervisionSettings
from voxcpm_grpc.worker import main
from voxcpm_grpc.worker.engine_like import EngineLike

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload([main.__name__])


def patient(**settings: float | None) -> SupervisionSettings:
    """Supervision without timeouts: an engine is lost only when its process ends."""
    return SupervisionSettings(**{"silence_seconds": NEVER_SECONDS, "step_seconds": NEVER_SECONDS, **settings})


class ForkedEngine(EngineProcess):
    """An engine in a process forked from one that has loaded the modules of engines.

    It starts several times as fast as a process of its own does, which is what a server starts, and differs in nothing
    else.
    """

    async def _started(self, addresses: Addresses) -> SpawnProcess:
        process = FORKED.Process(target=self._main, args=(addresses,), name=self.name, daemon=self._daemon)
        await asyncio.to_thread(process.start)
        return cast(SpawnProcess, process)


@dataclass
class Launcher:
    """Makes and keeps the processes of one replica.

    Each start uses the next entry of `makes`, and all later starts the last one. If `restarts` is false, a second start
    fails. The engines record their statistics in `folder`, if it is given.
    """

    makes: Sequence[Callable[[], EngineLike]]
    name: str = "engine"
    restarts: bool = True
    folder: Path | None = None
    processes: list[EngineProcess] = field(default_factory=list)

    def __call__(self) -> EngineProcess:
        if self.processes and not self.restarts:
            raise RuntimeError("this replica does not restart")
        make = self.makes[min(len(self.processes), len(self.makes) - 1)]
        recorded = RecordStats(make, self.folder) if self.folder else make
        process = ForkedEngine(recorded, name=self.name, stop_seconds=2.0)
        self.processes.append(process)
        return process

    @property
    def pid(self) -> int:
        """The process of the latest engine."""
        pid = self.processes[-1].pid
        assert pid
        return pid

    @property
    def is_running(self) -> bool:
        """True if the process of the latest engine has not ended."""
        return not is_gone(self.pid)

    def kill(self, signal_number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, signal_number)


def engines_of(
    launchers: Sequence[Launcher], settings: SupervisionSettings | None = None, loras: Iterable[str] = ()
) -> LocalEngines:
    """The engines of these launchers, by their names; equal ones get numbers."""
    named: dict[str, Launcher] = {}
    for launcher in launchers:
        named[launcher.name if launcher.name not in named else f"{launcher.name} {len(named)}"] = launcher
    return LocalEngines(named, settings or patient(), loras)


def pool_with(*launchers: Launcher, settings: SupervisionSettings | None = None) -> EnginePool:
    """A pool of the engines of these launchers, not yet started."""
    return EnginePool(engines_of(launchers, settings))


class RecordedPool(EnginePool):
    """A pool whose engines record their statistics."""

    def __init__(
        self, launchers: Sequence[Launcher], settings: SupervisionSettings, folder: Path, loras: Iterable[str] = ()
    ) -> None:
        for launcher in launchers:
            launcher.folder = folder
        self.engines = engines_of(launchers, settings, loras)
        super().__init__(self.engines)
        self._launchers = launchers
        self._folder = folder

    def add(self, launcher: Launcher) -> Replica:
        """Add the engine of a launcher."""
        self.engines.add(launcher.name, launcher)
        return self.replicas[-1]

    async def remove(self, replica: Replica, *, seconds: float) -> None:
        """Drain a replica for up to `seconds`, and stop its engine."""
        await self.drain(replica, seconds=seconds)
        await self.engines.remove(replica.name)

    def stats_by_engine(self) -> dict[str, Stats]:
        return {one.name: recorded_stats(self._folder, one.pid) for one in self._launchers}

    def stats(self) -> Stats:
        """The statistics of the only engine."""
        [stats] = self.stats_by_engine().values()
        return stats


@contextlib.asynccontextmanager
async def started(
    *launchers: Launcher, settings: SupervisionSettings | None = None, loras: Iterable[str] = ()
) -> AsyncIterator[RecordedPool]:
    with tempfile.TemporaryDirectory() as folder:
        pool = RecordedPool(launchers, settings or patient(), Path(folder), loras)
        await pool.start()
        try:
            yield pool
        finally:
            await pool.close()


@contextlib.asynccontextmanager
async def pool_of(
    *makes: Callable[[], EngineLike], settings: SupervisionSettings | None = None
) -> AsyncIterator[RecordedPool]:
    """A started pool of these engines, each in a process of its own."""
    launchers = [Launcher([make], name=f"engine-{number}") for number, make in enumerate(makes)]
    async with started(*launchers, settings=settings) as pool:
        yield pool


async def everything(stream):
    async with asyncio.timeout(HANG_SECONDS), contextlib.aclosing(stream) as items:
        return [item async for item in items]


def chunks_of(events: Iterable[object]) -> int:
    """The chunks of these events, of which an engine may merge some."""
    return len(indexes_of(events))


def indexes_of(events: Iterable[object]) -> list[int]:
    """The index of each chunk of these events."""
    made = (range(event.index, event.end) for event in events if isinstance(event, AudioChunk))
    return [index for indexes in made for index in indexes]


async def steps_reach(made: Callable[[], int], steps: int) -> None:
    """Wait until that many steps are made, and check that no more follow."""
    await until(lambda: made() >= steps)
    await asyncio.sleep(0.1)
    assert made() == steps


async def at_rest(pool: RecordedPool) -> Stats:
    """The statistics of the only engine when it has handled every command and has no streams left.

    Commands arrive in order, so a request that finishes follows all commands that were sent before it.
    """
    await everything(pool.generate(request("last", 1)))
    await until(lambda: not pool.stats().running)
    return pool.stats()


async def health_is(pool: EnginePool, healthy: bool):
    async with asyncio.timeout(HANG_SECONDS):
        async for now in pool.health():
            if now is healthy:
                return


async def all_ready(pool: EnginePool) -> None:
    await until(lambda: all(replica.ready for replica in pool.replicas))
