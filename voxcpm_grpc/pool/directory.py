"""The interface of the engines of a model, wherever they run, to the pool of a front."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from voxcpm_grpc.ipc.messages import Command, Report
from voxcpm_grpc.pool.adapter_catalog import NameOwner
from voxcpm_grpc.request import ModelInfo


class Connection(Protocol):
    """The connection of a front to one engine. Belongs to one event loop, which no method blocks."""

    def post(self, command: Command) -> None:
        """Send a command; never waits. It is dropped after `end`."""
        ...

    def reports(self) -> AsyncGenerator[list[Report]]:
        """Yield the reports of each step, in order. After `end`, it ends with those that have arrived.

        Only one reader may iterate at a time. After an error, another iteration goes on with the next reports.
        """
        ...

    def end(self) -> None:
        """Note that the engine has ended."""
        ...

    def close(self) -> None:
        """Free the connection. May be called more than once."""
        ...


class EngineListener(Protocol):
    """Follows the events of engines, each known by its name. No method may block or raise an exception."""

    def on_ready(self, engine: str, info: ModelInfo, restarts: int) -> None:
        """An engine takes commands. It has replaced `restarts` others."""
        ...

    def on_lost(self, engine: str, seconds: float) -> None:
        """There is no engine yet, or no longer. The next one is expected in `seconds`; none if they are infinite.

        Called again for each new expectation.
        """
        ...

    def on_removed(self, engine: str) -> None:
        """The engine has been stopped for good."""
        ...


class Engines(Protocol):
    """The engines of one model, which restart when they are lost. Belongs to one event loop."""

    @property
    def names(self) -> NameOwner:
        """The owner of the names of the model's LoRA adapters."""
        ...

    def watch(self, listener: EngineListener) -> None:
        """Report the present state of each engine, and all later events."""
        ...

    def connect(self, engine: str) -> Connection:
        """Connect to an engine that is ready."""
        ...

    async def start(self) -> None:
        """Start the engines, and wait until they serve. Raises StartupError if they cannot."""
        ...

    async def close(self) -> None:
        """Stop the engines, or leave them to their owner. No event follows. May be called more than once."""
        ...
