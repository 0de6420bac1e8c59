"""Engines in processes of this host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path

from voxcpm_grpc import logs
from voxcpm_grpc.ipc.messages import Detach
from voxcpm_grpc.ipc.process import ChildProcess
from voxcpm_grpc.ipc.sockets import Addresses, FrontSocket
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.pool.engines.standby import Standby
from voxcpm_grpc.pool.engines.supervised import SupervisedEngines
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.engine import EngineSettings, SupervisionSettings
from voxcpm_grpc.worker import main
from voxcpm_grpc.worker.engine_like import EngineLike

START_SECONDS = 900.0  # seconds: reading tens of gigabytes from a cold disk takes minutes
STOP_SECONDS = 5.0
FRONT = "front"  # the process that owns the engines has one front, with this name


class EngineProcess(ChildProcess):
    """An engine in a process of this host: the standby process if there is one, else a spawned one.

    The process calls `make_engine`, which must be picklable. `address` is where fronts connect.
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

    async def start(self) -> ModelInfo:
        with self._standby.engine_starts() if self._standby else contextlib.nullcontext():
            info = await super().start()
        if self._standby:
            self._standby.keep(info.device)
        return info

    def connect(self) -> FrontSocket:
        return FrontSocket(self.address, FRONT)

    async def _started(self, addresses: Addresses) -> SpawnProcess:
        if self._standby and (process := self._standby.take(self.name, self._main, addresses)):
            return process
        return await super()._started(addresses)


class LocalEngines(SupervisedEngines[EngineProcess]):
    """The engines of one model in processes of this host, for fronts in this process and in others."""

    def __init__(
        self,
        factories: Mapping[str, Callable[[], EngineProcess]],
        settings: SupervisionSettings | None = None,
        loras: Iterable[str] = (),
        standby: Standby | None = None,
    ) -> None:
        """standby: is closed with the engines"""
        super().__init__(factories, settings or SupervisionSettings(), loras)
        self._standby = standby

    @classmethod
    def of_checkpoint(
        cls,
        directory: Path,
        name: str,
        engines: Mapping[str, EngineSettings],
        settings: SupervisionSettings | None = None,
        *,
        log: LogOptions = logs.DEFAULT,
        engines_here: int | None = None,
        standby: Standby | None = None,
        registers_loras: bool = False,
    ) -> LocalEngines:
        """Engines with the checkpoint in `directory`. `engines` has the settings of each by the name of its device.

        engines_here: the engines of all models on this host; default: these
        standby: of all engines of this host; default: one for these
        registers_loras: True if the engines may get LoRA adapters while they run
        """
        settings = settings or SupervisionSettings()
        standby = standby or Standby.of_engines([directory], settings.standby, log=log)
        made: set[str] = set()

        def make(process: str, engine: EngineSettings) -> EngineProcess:
            options = {"restarted": process in made, "registers_loras": registers_loras}
            load = main.LoadEngine(directory, name, engine, engines_here or len(engines), **options)
            made.add(process)
            return EngineProcess(load, name=process, log=log, standby=standby)

        processes = {f"engine {device}": engine for device, engine in engines.items()}
        factories = {process: partial(make, process, engine) for process, engine in processes.items()}
        return cls(factories, settings, next(iter(engines.values())).loras, standby)

    def address(self, engine: str) -> str:
        """The address of an engine that is ready, to which fronts in other processes connect."""
        return self._ready(engine).address

    def detach(self, front: str) -> None:
        """Cancel the work of a front that has ended. Its name must never be used again."""
        for entry in self._entries.values():
            if entry.engine:
                entry.engine.post(Detach(front))

    async def close(self, *, force: bool = False) -> None:
        await super().close(force=force)
        if self._standby:
            await self._standby.close()
