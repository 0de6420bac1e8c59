"""The host: owns engines and fronts in processes of their own, restarts them, and connects them to each other.

Calls and audio do not pass through the host: fronts and engines exchange them directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import zmq

from voxcpm_grpc import progress
from voxcpm_grpc.aio.tasks import cancel_and_wait, close_all, keep_running
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.ipc.messages import (
    AdapterList,
    EngineDraining,
    EngineLost,
    EngineReady,
    EngineStarting,
    ManageEngine,
    Registration,
    Report,
    Stop,
)
from voxcpm_grpc.ipc.process import ChildProcess
from voxcpm_grpc.ipc.sockets import Addresses
from voxcpm_grpc.pool.directory import EngineListener
from voxcpm_grpc.pool.engines.local import START_SECONDS, LocalEngines
from voxcpm_grpc.pool.engines.questions import HostQuestions
from voxcpm_grpc.pool.engines.supervisor import Supervisor
from voxcpm_grpc.progress import Listener, Progress
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.engine import SupervisionSettings

FRONT_START_SECONDS = 120.0
# The event loop of a front sends its heartbeats, and one large call can block it. An engine has a thread for them. A
# front that is restarted without need costs all its streams; one that is restarted late costs a pause.
FRONT_SILENCE_SECONDS = 5.0
UNWIND_SECONDS = 0.2  # seconds of a front that starts, until it has ended its children
CUT_OFF_SECONDS = 5.0  # seconds for a front to tell its callers that it ends at once
LEAVE_SECONDS = 20.0  # seconds from the end of a front's drain to the end of its process, with that of its HTTP gateway
FrontMain = Callable[..., None]
"""The main function of a front, `(addresses, *, restarted)`. A front is restarted if the server was ready before."""
NAME_LENGTH = 40  # characters that a socket and its folder add to a path, at most


class Host(EngineListener):
    """Fronts in processes of their own, and the engines that all of them use. A front that is lost is replaced.

    The loss of a front ends its own streams; the loss of an engine ends its work for all fronts. Each front is a
    listener of the engines. If `skip_delay` is true, `close` lets the fronts drain without the drain delay. Raises
    StartupError if their sockets cannot be created.
    """

    def __init__(self, models: Sequence[LocalEngines], supervision: SupervisionSettings) -> None:
        """models: the engines of each model, whose names are unique"""
        if fault := socket_fault():
            raise StartupError(fault)
        self.skip_delay = False
        self._started = False
        self._supervision = supervision
        self._models = models
        self._fronts: dict[str, FrontProcess] = {}
        self.questions = HostQuestions(self._fronts)
        self._front_supervisors: list[Supervisor[FrontProcess]] = []
        self._over = asyncio.Event()

    @property
    def fronts(self) -> dict[str, str]:
        """The names of the fronts that run, by the ids of their processes: a front that is restarted has a new id."""
        return {front.id: front.name for front in self._fronts.values()}

    @property
    def infos(self) -> list[ModelInfo]:
        """The models that are served. Known after `start`."""
        return [engines.info for engines in self._models if engines.info]

    async def start(self, fronts: Mapping[str, FrontMain], *, drain_seconds: float) -> None:
        """Start the engines and the fronts: `fronts` maps the name of each to its main function. Raises StartupError.

        When the host closes, a front has `drain_seconds` to finish its calls.
        """
        for engines in self._models:
            engines.watch(self)
        silence = max(FRONT_SILENCE_SECONDS, self._supervision.silence_seconds)
        supervision = self._supervision.model_copy(update={"silence_seconds": silence})
        for name, main in fronts.items():
            make_front = partial(self._make_front, name, main, drain_seconds)
            self._front_supervisors.append(Supervisor(make_front, supervision, on_lost=self._on_front_lost))
        with progress.reported_to(partial(self._on_progress, progress.listener())):  # reports come also after a loss
            starts = [engines.start() for engines in self._models]
            await _await_all((*starts, *(supervisor.start() for supervisor in self._front_supervisors)))
        self._started = True

    async def given_up(self) -> None:
        """Wait until no engine of a model, or no front, is left or will be started."""
        await self._over.wait()

    async def close(self) -> None:
        """Let the fronts drain, then stop the engines. If this is cancelled, the fronts cut their calls off."""
        try:
            await close_all(supervisor.close() for supervisor in self._front_supervisors)
        except asyncio.CancelledError:
            await self._cut_off()
            raise
        finally:
            fronts = [supervisor.close(force=True) for supervisor in self._front_supervisors]
            await close_all((*fronts, *(engines.close(force=True) for engines in self._models)))

    # ---- events of engines and fronts

    def on_lost(self, engine: str, seconds: float) -> None:
        if math.isinf(seconds) and any(engines.given_up for engines in self._models):
            self._over.set()

    def _on_front_lost(self, seconds: float) -> None:
        if math.isinf(seconds) and all(supervisor.given_up for supervisor in self._front_supervisors):
            self._over.set()

    def _on_progress(self, receive: Listener, step: Progress) -> None:
        receive(step)
        for front in self._fronts.values():
            front.post(EngineStarting(step))

    def on_front_started(self, front: FrontProcess) -> None:
        self._fronts[front.id] = front
        for engines in self._models:
            engines.names.attach_front(front.id, partial(_send_adapters, front, next(iter(engines))))
            engines.watch(front)

    def on_front_ended(self, front: FrontProcess) -> None:
        if self._fronts.pop(front.id, None):
            for engines in self._models:
                engines.unwatch(front)
                engines.detach(front.id)
                engines.names.detach_front(front.id)

    def manage(self, report: ManageEngine) -> None:
        """Take an engine out of service, or start it again, as a front asks."""
        engines = self._engines(report.engine)
        if report.drain:
            engines.drain(report.engine, restart=report.restart)
        else:
            engines.resume(report.engine)

    def on_adapters(self, front: FrontProcess, report: AdapterList) -> None:
        engines = self._engines(report.engine)
        for registration in report.registrations:
            engines.names.change(front.id, registration)

    def address(self, engine: str) -> str:
        """The address of an engine that is ready."""
        return self._engines(engine).address(engine)

    def _engines(self, engine: str) -> LocalEngines:
        """The engines of the model to which one belongs."""
        return next(engines for engines in self._models if engine in engines)

    async def _cut_off(self) -> None:
        """Let each front end its calls at once, and wait for its end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CUT_OFF_SECONDS):
                await asyncio.gather(*(front.cut_off() for front in self._fronts.values()))

    def _make_front(self, name: str, main: FrontMain, drain_seconds: float) -> FrontProcess:
        return FrontProcess(self, name, partial(main, restarted=self._started), drain_seconds)


def socket_fault() -> str:
    """The reason for which a host cannot connect fronts and engines, with the remedy; empty without one."""
    parent, limit = tempfile.gettempdir(), zmq.IPC_PATH_MAX_LEN - NAME_LENGTH
    if (length := len(os.fsencode(parent))) <= limit:
        return ""
    return (
        f"the folder for temporary files, {parent}, has a path of {length} bytes; with the sockets between fronts "
        f"and engines the limit is {limit}; set TMPDIR to a shorter one"
    )


class FrontProcess(ChildProcess, EngineListener):
    """A front in a process of its own, which follows the events of all engines.

    `id` is its name for the engines, and never that of another one.
    """

    _numbers = itertools.count()

    def __init__(self, host: Host, name: str, main: Callable[[Addresses], None], drain_seconds: float) -> None:
        super().__init__(
            main,
            name=name,
            start_seconds=START_SECONDS + FRONT_START_SECONDS,  # the engines may start at the same time
            stop_seconds=drain_seconds + LEAVE_SECONDS,
            daemon=False,  # it has children
            unwind_seconds=UNWIND_SECONDS,  # children that were being spawned would report that it has gone
        )
        self.id = f"{next(self._numbers)}"
        self._host = host

    async def start(self) -> ModelInfo:
        self._host.on_front_started(self)
        return await super().start()

    @property
    def ready(self) -> bool:
        return self._ready

    def on_ready(self, engine: str, info: ModelInfo, restarts: int) -> None:
        self.post(EngineReady(engine, self._host.address(engine), self.id, info, restarts))

    def on_lost(self, engine: str, seconds: float) -> None:
        self.post(EngineLost(engine, seconds))

    def on_draining(self, engine: str) -> None:
        self.post(EngineDraining(engine))

    async def reports(self) -> AsyncGenerator[list[Report]]:
        async with contextlib.aclosing(super().reports()) as received:
            async for reports in received:
                for report in reports:
                    if isinstance(report, AdapterList):
                        self._host.on_adapters(self, report)
                    elif isinstance(report, ManageEngine):
                        self._host.manage(report)
                    else:
                        self._host.questions.on_report(self, report)
                yield reports

    async def close(self, *, force: bool = False) -> None:
        self._stop = Stop(skip_delay=self._host.skip_delay)
        reading = keep_running(self._read_all, "the reports of a front that drains")
        try:
            await super().close(force=force)
        finally:
            await cancel_and_wait(reading)
        self._host.on_front_ended(self)

    async def _read_all(self) -> None:
        """Read the reports of a front that drains: it still answers questions, and asks them."""
        async for _ in self.reports():
            pass

    async def cut_off(self) -> None:
        """Let the front end at once, and wait until it has ended. One that starts has no calls, and is killed."""
        if self._ready:
            self.post(Stop(at_once=True))
            await self._ended.wait()


def _send_adapters(front: FrontProcess, engine: str, registrations: tuple[Registration, ...]) -> None:
    front.post(AdapterList(engine, registrations))


async def _await_all(starts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await coroutines concurrently. Raises the first error."""
    try:
        async with asyncio.TaskGroup() as group:
            for start in starts:
                group.create_task(start)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
