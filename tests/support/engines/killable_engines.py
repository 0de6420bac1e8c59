"""Engines of one model in the process of a test, which dies and comes back in no time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc.messages import Command, Report
from voxcpm_grpc.pool.adapter_catalog import AdapterNames
from voxcpm_grpc.pool.directory import EngineListener
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.worker.dispatcher import Dispatcher
from voxcpm_grpc.worker.engine_like import EngineLike
from voxcpm_grpc.worker.heartbeat import StepTimer

FRONT = "front"


class KillableConnection:
    """The connection to one engine; implements `directory.Connection`."""

    def __init__(self) -> None:
        self.commands: list[bytes] = []
        self.posted = asyncio.Event()
        self._reports: asyncio.Queue[bytes | None] = asyncio.Queue()

    def post(self, command: Command) -> None:
        self.commands.append(encoding.encode(command))
        self.posted.set()

    def report(self, reports: list[Report]) -> None:
        self._reports.put_nowait(encoding.encode(reports))

    async def reports(self) -> AsyncGenerator[list[Report]]:
        while (data := await self._reports.get()) is not None:
            yield encoding.decode_reports(data)

    def end(self) -> None:
        self._reports.put_nowait(None)

    def close(self) -> None:
        pass


class KillableEngines:
    """Runs dispatchers in the event loop, until `kill`; implements `directory.Engines`.

    after_round: called after each round of an engine, with its name
    """

    def __init__(self, names: str, make: Callable[[], EngineLike]) -> None:
        self.names = AdapterNames()
        self.kills = 0
        self.after_round: Callable[[str], object] = lambda name: None
        self._engines = tuple(names)
        self._make = make
        self._listeners: list[EngineListener] = []
        self._connections: dict[str, KillableConnection] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def watch(self, listener: EngineListener) -> None:
        self._listeners.append(listener)
        for name in self._engines:
            listener.on_lost(name, 1.0)

    async def start(self) -> None:
        for name in self._engines:
            self._start(name)

    def _start(self, name: str) -> None:
        engine = self._make()
        connection = self._connections[name] = KillableConnection()
        self._tasks[name] = asyncio.create_task(self._run(name, engine, connection))
        for listener in self._listeners:
            listener.on_ready(name, engine.info, self.kills)

    async def _run(self, name: str, engine: EngineLike, connection: KillableConnection) -> None:
        dispatcher = Dispatcher(engine, StepTimer())
        while True:
            if not dispatcher.busy and not connection.commands:
                connection.posted.clear()
                await connection.posted.wait()
            commands, connection.commands = connection.commands, []
            try:
                outbox = dispatcher.run_once((FRONT, command) for command in commands)
            except Exception:  # which ends the process of an engine
                self.kill(name)
                return
            if reports := outbox.get(FRONT):
                connection.report(reports)
            self.after_round(name)
            await asyncio.sleep(0)

    def kill(self, name: str) -> None:
        """End an engine, with all that it was about to send in its next rounds, and start another in its place."""
        self.kills += 1
        self._tasks.pop(name).cancel()
        self._connections[name].end()
        for listener in self._listeners:
            listener.on_lost(name, 0.1)
        asyncio.get_running_loop().call_soon(self._start, name)

    def connect(self, engine: str) -> KillableConnection:
        return self._connections[engine]

    def drain(self, engine: str, *, restart: bool) -> None:
        for listener in self._listeners:
            listener.on_draining(engine)

    def resume(self, engine: str) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()


E = TypeVar("E", bound=KillableEngines)


@asynccontextmanager
async def pool_over(engines: E) -> AsyncIterator[tuple[EnginePool, E]]:
    """A pool of these engines, from its start to its close."""
    pool = EnginePool(engines)
    await pool.start()
    try:
        yield pool, engines
    finally:
        await pool.close()
