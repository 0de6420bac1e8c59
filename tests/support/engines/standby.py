"""A pool of engines that share a standby process."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from support.doubles.fake_engine import MakeFake, request
from support.doubles.pools import everything, patient
from support.servers.waiting import until

from voxcpm_grpc.events import Finished
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.pool.engines.standby import Standby

KEPT = "on"  # also for engines on a CPU


@dataclass
class Engines:
    """A pool of engines that share a standby process, and the process of each engine so far, by its name."""

    standby: Standby
    pool: EnginePool
    processes: dict[str, list[EngineProcess]] = field(default_factory=dict)

    def pid(self, name: str = "engine 0") -> int | None:
        """The process of an engine; None between the end of one and the start of the next."""
        return self.processes[name][-1].pid

    def kill(self, name: str = "engine 0") -> int:
        """Kill an engine that runs. Returns its process."""
        pid = self.pid(name)
        assert pid
        os.kill(pid, signal.SIGKILL)
        return pid

    async def lose(self, *names: str) -> None:
        """Kill engines, and wait for those that replace them."""
        lost = [self.kill(name) for name in names]
        await until(lambda: not {self.pid(name) for name in names} & {*lost, None})
        await until(lambda: all(replica.ready for replica in self.pool.replicas))

    async def speak(self) -> None:
        events = await everything(self.pool.generate(request("after", 2)))
        assert isinstance(events[-1], Finished)


@contextlib.asynccontextmanager
async def engines(standby: Standby, *makes: MakeFake) -> AsyncIterator[Engines]:
    processes: dict[str, list[EngineProcess]] = {}

    def factory(name: str, make: MakeFake):
        def start() -> EngineProcess:
            process = EngineProcess(make, name=name, standby=standby)
            processes.setdefault(name, []).append(process)
            return process

        return start

    named = {f"engine {number}": make for number, make in enumerate(makes or [MakeFake()])}
    factories = {name: factory(name, make) for name, make in named.items()}
    pool = EnginePool(LocalEngines(factories, patient(restart_seconds=0.05), standby=standby))
    await pool.start()
    try:
        yield Engines(standby, pool, processes)
    finally:
        await pool.close()


async def prepared(standby: Standby) -> int:
    """The process that waits, once there is one."""
    await until(lambda: standby.pid)
    assert standby.pid
    return standby.pid
