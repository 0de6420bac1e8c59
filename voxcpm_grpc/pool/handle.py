"""The interface of an engine that runs elsewhere, and its implementation for processes of this host."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Protocol

from voxcpm_grpc import logs
from voxcpm_grpc.ipc.messages import Command, Detach, Report, Stop
from voxcpm_grpc.ipc.process import ChildProcess
from voxcpm_grpc.ipc.sockets import Addresses, FrontSocket, received
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.pool.standby import Standby
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.worker import main
from voxcpm_grpc.worker.dispatcher import EngineLike

logger = logging.getLogger(__name__)

START_SECONDS = 900.0  # reading tens of gigabytes from a cold disk takes minutes
STOP_SECONDS = 5.0


class Handle(Protocol):
    """One engine that runs elsewhere, from its start to its end. It is never restarted.

    Belongs to one event loop, which no method blocks.
    """

    name: str

    async def start(self) -> ModelInfo:
        """Start the engine and warm it up. Raises StartupError if that fails."""
        ...

    def post(self, command: Command) -> None:
        """Send a command; never waits. A command to an engine that has ended is dropped."""
        ...

    def reports(self) -> AsyncGenerator[list[Report]]:
        """Yield the reports of each step, in order, and a Heartbeat every `messages.HEARTBEAT_SECONDS`.

        Ends when the engine has ended. Only one reader may iterate at a time.
        """
        ...

    async def close(self, *, force: bool = False) -> None:
        """Stop the engine. It may finish its step unless `force` is true, and is killed if it does not stop.

        Returns when it has ended and its device is free. May be called at any time and more than once.
        """
        ...


HandleFactory = Callable[[], Handle]
"""Makes a new handle of a replica, not yet started, at each call."""


class ProcessHandle(ChildProcess):
    """An engine in a process of this host: the standby process if there is one, else a spawned one.

    The process calls `make_engine`, which must be picklable.
    """

    def __init__(
        self,
        make_engine: Callable[[], EngineLike],
        *,
        name: str = "engine",
        log: LogOptions = logs.DEFAULT,
        standby: Standby | None = None,
        start_seconds: float = START_SECONDS,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        super().__init__(
            partial(main.main, make_engine=make_engine, log=log),
            name=name,
            start_seconds=start_seconds,
            stop_seconds=stop_seconds,
        )
        self._standby = standby
        self._front: FrontSocket | None = None

    async def start(self) -> ModelInfo:
        with self._standby.engine_starts() if self._standby else contextlib.nullcontext():
            info = await super().start()
        if self._standby:
            self._standby.keep(info.device)
        self._front = FrontSocket(self.address, "front")
        return info

    def post(self, command: Command) -> None:
        if isinstance(command, Stop | Detach) or self._front is None:
            super().post(command)
        elif not self._ended.is_set():
            self._front.post(command)

    def reports(self) -> AsyncGenerator[list[Report]]:
        front = (self._front.socket,) if self._front else ()
        return received(self._ended, self._reports, *front)

    async def close(self, *, force: bool = False) -> None:
        await super().close(force=force)
        if self._front:
            self._front.close()

    async def _started(self, addresses: Addresses) -> SpawnProcess:
        if self._standby and (process := self._standby.take(self.name, self._main, addresses)):
            logger.info("%s starts in the standby process, %s", self.name, process.pid)
            return process
        return await super()._started(addresses)


def process_factories(
    directory: Path,
    name: str,
    engines: Mapping[str, EngineSettings],
    log: LogOptions,
    engines_here: int | None = None,
    standby: Standby | None = None,
) -> dict[str, HandleFactory]:
    """The factory of each engine's process, by the name of its replica, for the checkpoint in `directory`.

    engines_here: the engines of all models on this host; default: these
    standby: of all engines of this host
    """

    made: set[str] = set()

    def make_handle(replica: str, settings: EngineSettings) -> Handle:
        load = main.LoadEngine(directory, name, settings, engines_here or len(engines), restarted=replica in made)
        made.add(replica)
        return ProcessHandle(load, name=f"engine {replica}", log=log, standby=standby)

    return {replica: partial(make_handle, replica, settings) for replica, settings in engines.items()}
