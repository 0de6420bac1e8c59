"""The engines of a model that this process starts and supervises, wherever they run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

from voxcpm_grpc import lora_files
from voxcpm_grpc.aio.tasks import close_all
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.pool.adapter_catalog import AdapterNames, registered
from voxcpm_grpc.pool.directory import Connection, EngineListener
from voxcpm_grpc.pool.engines.supervisor import Supervised, Supervisor
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.engine import SupervisionSettings


class Engine(Supervised, Protocol):
    """One engine, from its start to its end. `connect` needs one that is ready."""

    def connect(self) -> Connection: ...


E = TypeVar("E", bound=Engine)


@dataclass
class _Entry(Generic[E]):
    """A supervised engine: the present one while it is ready, and the model of the latest one."""

    supervisor: Supervisor[E]
    engine: E | None = None
    info: ModelInfo | None = None


class SupervisedEngines(Generic[E]):
    """Engines of one model; implements `directory.Engines`. All of them must have the same checkpoint."""

    def __init__(
        self, factories: Mapping[str, Callable[[], E]], settings: SupervisionSettings, loras: Iterable[str] = ()
    ) -> None:
        """
        factories: make each new engine, not yet started, by its name
        loras: the adapters of the settings of the engines, each as NAME=DIRECTORY
        """
        self.names = AdapterNames()
        self._settings = settings
        self._loras = tuple(loras)
        self._listeners: list[EngineListener] = []
        self._entries: dict[str, _Entry[E]] = {}
        self._closed = False
        for name, make in factories.items():
            self._entries[name] = self._entry(name, make)

    def __iter__(self) -> Iterator[str]:
        """The names of the engines."""
        return iter(self._entries)

    @property
    def info(self) -> ModelInfo | None:
        """The model; None before the first engine is ready."""
        return next((entry.info for entry in self._entries.values() if entry.info), None)

    @property
    def given_up(self) -> bool:
        """True if no engine is left or will be started."""
        return all(entry.supervisor.given_up for entry in self._entries.values())

    async def start(self) -> None:
        """Start all engines, and wait until they are ready. If one cannot start, stops all and raises StartupError."""
        try:
            for adapter in await asyncio.to_thread(lora_files.adapters_of, self._loras):
                self.names.change("", registered(adapter))
            async with asyncio.TaskGroup() as group:
                for entry in self._entries.values():
                    group.create_task(entry.supervisor.start())
        except BaseException as error:
            await self.close()
            raise (error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error) from None

    def add(self, name: str, make: Callable[[], E]) -> None:
        """Add an engine under a new name. A start that fails is tried again. Raises StartupError after `close`."""
        if self._closed:
            raise StartupError("the engines are closed, and nothing would stop one that is added now")
        entry = self._entries[name] = self._entry(name, make)
        for listener in self._listeners:
            listener.on_lost(name, entry.supervisor.restarts.seconds_left)
        entry.supervisor.start_in_background()

    async def remove(self, name: str) -> None:
        """Stop an engine for good. Raises if it cannot be stopped; may then be called again."""
        await self._entries[name].supervisor.close()
        del self._entries[name]
        for listener in self._listeners:
            listener.on_removed(name)

    def watch(self, listener: EngineListener) -> None:
        self._listeners.append(listener)
        for name, entry in self._entries.items():
            if entry.engine and entry.info:
                listener.on_ready(name, entry.info, entry.supervisor.restarts.count)
            else:
                listener.on_lost(name, entry.supervisor.restarts.seconds_left)
            if entry.supervisor.leaves:
                listener.on_draining(name)

    def unwatch(self, listener: EngineListener) -> None:
        """Report no more events to a listener."""
        self._listeners.remove(listener)

    def connect(self, engine: str) -> Connection:
        return self._ready(engine).connect()

    def drain(self, engine: str, *, restart: bool) -> None:
        self._entries[engine].supervisor.drain(restart=restart)

    def resume(self, engine: str) -> None:
        self._entries[engine].supervisor.resume()

    async def close(self, *, force: bool = False) -> None:
        """Stop all engines. They may finish their steps unless `force` is true."""
        self._closed = True
        await close_all(entry.supervisor.close(force=force) for entry in self._entries.values())

    def _ready(self, name: str) -> E:
        engine = self._entries[name].engine
        assert engine
        return engine

    def _entry(self, name: str, make: Callable[[], E]) -> _Entry[E]:
        return _Entry(
            Supervisor(
                make,
                self._settings,
                on_ready=partial(self._on_ready, name),
                on_lost=partial(self._on_lost, name),
                on_draining=partial(self._on_draining, name),
            )
        )

    def _on_ready(self, name: str, engine: E, info: ModelInfo) -> None:
        if self.info and self.info.fingerprint != info.fingerprint:
            raise StartupError("the engines serve different models; give all of them the same checkpoint")
        entry = self._entries[name]
        entry.engine, entry.info = engine, info
        for listener in self._listeners:
            listener.on_ready(name, info, entry.supervisor.restarts.count)

    def _on_draining(self, name: str) -> None:
        for listener in self._listeners:
            listener.on_draining(name)

    def _on_lost(self, name: str, seconds: float) -> None:
        self._entries[name].engine = None
        for listener in self._listeners:
            listener.on_lost(name, seconds)
