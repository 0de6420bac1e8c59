"""Pools of fake engines, and what one reads of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from support.fake_engine import MakeFake
from support.waiting import HANG_SECONDS, NEVER_SECONDS

from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.handle import ProcessHandle
from voxcpm_grpc.settings.schema import SupervisionSettings


def patient(**settings: float | None) -> SupervisionSettings:
    """Supervision for which no engine is too slow: it is lost when its process has ended."""
    return SupervisionSettings(**{"silence_seconds": NEVER_SECONDS, "step_seconds": NEVER_SECONDS, **settings})


@dataclass
class Launcher:
    """Launches engines of one place, and remembers them. What stands in `makes` is made in turn, the last one forever.

    Without `again` a second launch fails.
    """

    makes: list[MakeFake]
    name: str = "engine"
    again: bool = True
    handles: list[ProcessHandle] = field(default_factory=list)

    def __call__(self) -> ProcessHandle:
        if self.handles and not self.again:
            raise RuntimeError("not again")
        make = self.makes[min(len(self.handles), len(self.makes) - 1)]
        handle = ProcessHandle(make, name=self.name, stop_seconds=2.0)
        self.handles.append(handle)
        return handle

    @property
    def pid(self) -> int:
        """Of the last one."""
        pid = self.handles[-1].pid
        assert pid
        return pid

    def kill(self, how: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, how)


@contextlib.asynccontextmanager
async def started(*launchers: Launcher, settings: SupervisionSettings | None = None) -> AsyncIterator[EnginePool]:
    pool = EnginePool(launchers, settings or patient())
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()


@contextlib.asynccontextmanager
async def pool_of(*makes: MakeFake, settings: SupervisionSettings | None = None) -> AsyncIterator[EnginePool]:
    """A started pool of these engines, each in its process."""
    launchers = [Launcher([make], name=f"engine-{number}") for number, make in enumerate(makes)]
    async with started(*launchers, settings=settings) as pool:
        yield pool


async def everything(stream):
    async with asyncio.timeout(HANG_SECONDS), contextlib.aclosing(stream) as items:
        return [item async for item in items]


async def steps_reach(pool: EnginePool, steps: int):
    """Wait until the engine has made that many steps, and see that it then rests.

    An engine that has work makes a step each time that it reads letters, such as those that ask for its statistics.
    """
    async with asyncio.timeout(HANG_SECONDS):
        while (await pool.stats()).steps < steps:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert [(await pool.stats()).steps for _ in range(3)] == [steps] * 3


async def at_rest(pool: EnginePool):
    """The engine's last word on its load, once nothing is left; the test fails if something stays."""
    async with asyncio.timeout(HANG_SECONDS):
        while (stats := await pool.stats()).running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return stats


async def health_is(pool: EnginePool, healthy: bool):
    async with asyncio.timeout(HANG_SECONDS):
        async for now in pool.health():
            if now is healthy:
                return
