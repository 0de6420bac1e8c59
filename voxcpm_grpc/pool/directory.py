"""The interface of the engines of a model, wherever they run, to the pool of a front."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from voxcpm_grpc.ipc.messages import Command, Report
from voxcpm_grpc.pool.adapter_catalog import NameOwner
from voxcpm_grpc.request import ModelInfo


class Connection(Protocol):
    """The connection of a front to one engine. Belongs to one event loop, which no method blocks.

    `post` never waits. `reports` yields the reports of each step, in order; after an error, another iteration goes on
    with the next ones. `end` notes that the engine has ended: no command is sent any more, and `reports` ends after the
    last ones. `close` frees the connection.
    """

    def post(self, command: Command) -> None: ...
    def reports(self) -> AsyncGenerator[list[Report]]: ...
    def end(self) -> None: ...
    def close(self) -> None: ...


class EngineListener(Protocol):
    """Follows the events of engines, each known by its name. No method may block or raise an exception."""

    def on_ready(self, engine: str, info: ModelInfo, restarts: int) -> None:
        """An engine takes commands. It has replaced `restarts` others."""

    def on_lost(self, engine: str, seconds: float) -> None:
        """There is no engine yet, or no longer. The next one is expected in `seconds`; none if they are infinite.

        Called again for each new expectation.
        """

    def on_draining(self, engine: str) -> None:
        """The engine leaves service: it must get no new work, and others go on with its streams.

        Followed by `on_lost`, and by `on_ready` if it is started again.
        """

    def on_removed(self, engine: str) -> None:
        """The engine has been stopped for good."""


class Engines(Protocol):
    """The engines of one model, which restart when they are lost. Belongs to one event loop.

    `names` owns the names of the model's LoRA adapters. `watch` reports the present state of each engine, and all later
    events. `connect` takes the name of an engine that is ready. `drain` takes one out of service, and with `restart` it
    is started again; `resume` starts one that was taken out. `start` waits until the engines serve, and raises
    StartupError if they cannot. `close` stops them, or leaves them to their owner; it may be called more than once.
    """

    @property
    def names(self) -> NameOwner: ...
    def watch(self, listener: EngineListener) -> None: ...
    def connect(self, engine: str) -> Connection: ...
    def drain(self, engine: str, *, restart: bool) -> None: ...
    def resume(self, engine: str) -> None: ...
    async def start(self) -> None: ...
    async def close(self) -> None: ...
