"""Where an engine lives, as its front sees it: a mailbox to write to, reports to read, and an end to notice."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Protocol

from voxcpm_grpc.ipc.child_process import ChildProcess
from voxcpm_grpc.ipc.messages import Command, Report
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.schema import EngineSettings
from voxcpm_grpc.worker import main
from voxcpm_grpc.worker.dispatcher import EngineLike

START_SECONDS = 900.0  # reading tens of gigabytes from a cold disk takes minutes
STOP_SECONDS = 5.0


class Handle(Protocol):
    """One life of one engine, wherever it runs: started once, used until it is gone, then closed.

    Belongs to one event loop; nothing here blocks it. An engine that was lost is followed by a new handle of the same
    place, made by the place's `Launch`; see `supervisor`.
    """

    name: str

    async def start(self) -> ModelInfo:
        """Bring the engine up, warmed up. Raises StartupError with its own words if it cannot."""
        ...

    def post(self, command: Command) -> None:
        """Send a command; never waits. A command to an engine that is gone goes nowhere."""
        ...

    def reports(self) -> AsyncGenerator[list[Report]]:
        """What the engine says, a step at a time, in order, with a Beat every `messages.BEAT_SECONDS` between.

        Ends when the engine is gone. Read by one reader, from start to end.
        """
        ...

    async def close(self, *, force: bool = False) -> None:
        """Stop the engine: it may finish its step, unless `force`, and is killed if it does not stop itself.

        Returns when it is gone and its device free. Safe at any time and more than once.
        """
        ...


Launch = Callable[[], Handle]
"""Makes the next handle of a place, not yet started. Every call makes a new one."""


class ProcessHandle(ChildProcess):
    """An engine in a spawned process of this host. `make_engine` is called there and must be picklable."""

    def __init__(
        self,
        make_engine: Callable[[], EngineLike],
        *,
        name: str = "engine",
        log_level: str = "info",
        start_seconds: float = START_SECONDS,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        super().__init__(
            partial(main.main, make_engine=make_engine, log_level=log_level),
            name=name,
            start_seconds=start_seconds,
            stop_seconds=stop_seconds,
        )


def processes(
    directory: Path, name: str, engines: Mapping[str, EngineSettings], log_level: str
) -> dict[str, Callable[[], ProcessHandle]]:
    """How to start each of these engines, by its name, for the checkpoint in `directory`."""

    def launch(place: str, settings: EngineSettings) -> ProcessHandle:
        load = main.LoadEngine(directory, name, settings, len(engines))
        return ProcessHandle(load, name=f"engine {place}", log_level=log_level)

    return {place: partial(launch, place, settings) for place, settings in engines.items()}
