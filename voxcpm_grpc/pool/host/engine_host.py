"""The host: owns engines and fronts in processes of their own, restarts them, and connects them to each other.

Calls and audio do not pass through the host: fronts and engines exchange them directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import zmq

from voxcpm_grpc import lora_files, progress
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.ipc.messages import (
    AdapterList,
    Detach,
    EngineExpected,
    EngineLost,
    EngineReady,
    EngineStarting,
    Registration,
    Report,
    Stop,
)
from voxcpm_grpc.ipc.process import ChildProcess
from voxcpm_grpc.ipc.sockets import Addresses
from voxcpm_grpc.pool.adapter_catalog import AdapterNames, registered
from voxcpm_grpc.pool.background import cancel_and_wait, close_all, keep_running
from voxcpm_grpc.pool.handle import START_SECONDS, Handle, HandleFactory
from voxcpm_grpc.pool.host.questions import HostQuestions
from voxcpm_grpc.pool.standby import Standby
from voxcpm_grpc.pool.supervisor import Supervisor
from voxcpm_grpc.progress import Progress
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.engine import SupervisionSettings

FRONT_START_SECONDS = 120.0
# The event loop of a front sends its heartbeats, and one large call can block it. An engine has a thread for them. A
# front that is restarted without need costs all its streams; one that is restarted late costs a pause.
FRONT_SILENCE_SECONDS = 5.0
UNWIND_SECONDS = 0.2  # of a front that starts, until it has ended its children
CUT_OFF_SECONDS = 5.0  # for a front to tell its callers that it ends at once
LEAVE_SECONDS = 20.0  # from the end of a front's drain to the end of its process, with that of its HTTP gateway
FrontMain = Callable[..., None]
"""The main function of a front, `(addresses, *, restarted)`. A front is restarted if the server was ready before."""
NAME_LENGTH = 40  # the most that a socket and its folder add to a path


class EngineHost:
    """Engines and fronts, each in a process of its own. Each process that is lost is replaced by a new one.

    The loss of a front ends its own streams; the loss of an engine ends its work for all fronts. If `skip_delay` is
    true, `close` lets the fronts drain without the drain delay. Raises StartupError if their sockets cannot be created.
    """

    def __init__(
        self,
        models: Sequence[Mapping[str, HandleFactory]],
        supervision: SupervisionSettings,
        loras: Sequence[Iterable[str]] = (),
        standby: Standby | None = None,
    ) -> None:
        """
        models: the factory of each engine of each model, by the name of its replica; names are unique
        loras: the LoRA adapters of the settings of each model, each as NAME=DIRECTORY
        standby: is closed with the host
        """
        self.skip_delay = False
        self._started = False
        self._supervision = supervision
        self._standby = standby
        if fault := socket_fault():
            raise StartupError(fault)
        self._loras = loras
        self._adapters = {next(iter(engines)): AdapterNames() for engines in models}  # by the first replica of each
        self._models = [
            [_EngineReplica(self, name, make_handle, supervision) for name, make_handle in engines.items()]
            for engines in models
        ]
        self._engines = {engine.name: engine for engines in self._models for engine in engines}
        self._fronts: dict[str, FrontProcess] = {}
        self.questions = HostQuestions(self._fronts)
        self._front_supervisors: list[Supervisor] = []
        self._over = asyncio.Event()

    @property
    def fronts(self) -> dict[str, str]:
        """The names of the fronts that run, by the ids of their processes: a front that is restarted has a new id."""
        return {front.id: front.name for front in self._fronts.values()}

    @property
    def infos(self) -> list[ModelInfo]:
        """The models that are served. Known after `start`."""
        return [next(engine.info for engine in engines if engine.info) for engines in self._models]

    async def start(self, fronts: Mapping[str, FrontMain], *, drain_seconds: float) -> None:
        """Start the engines and the fronts: `fronts` maps the name of each to its main function. Raises StartupError.

        When the host closes, a front has `drain_seconds` to finish its calls.
        """
        for names, loras in zip(self._adapters.values(), self._loras, strict=False):
            for adapter in await asyncio.to_thread(lora_files.adapters_of, loras):
                names.change("", registered(adapter))
        silence = max(FRONT_SILENCE_SECONDS, self._supervision.silence_seconds)
        supervision = self._supervision.model_copy(update={"silence_seconds": silence})
        for name, main in fronts.items():
            make_front = partial(self._make_front, name, main, drain_seconds)
            self._front_supervisors.append(Supervisor(make_front, supervision, on_given_up=self.on_given_up))
        engines = [engine.start() for engine in self._engines.values()]
        await _await_all((*engines, *(supervisor.start() for supervisor in self._front_supervisors)))
        self._started = True

    async def given_up(self) -> None:
        """Wait until no engine of a model, or no front, is left or will be started."""
        await self._over.wait()

    async def close(self) -> None:
        """Let the fronts drain, then stop the engines. If this is cancelled, the fronts cut their calls off."""
        supervisors = list(self._front_supervisors)
        try:
            await close_all(supervisor.close() for supervisor in supervisors)
        except asyncio.CancelledError:
            await self._cut_off()
            raise
        finally:
            supervisors += [engine.supervisor for engine in self._engines.values()]
            await close_all(supervisor.close(force=True) for supervisor in supervisors)
            if self._standby:
                await self._standby.close()

    # ---- callbacks of engines and fronts

    def on_front_started(self, front: FrontProcess) -> None:
        self._fronts[front.id] = front
        for replica, names in self._adapters.items():
            names.attach_front(front.id, partial(_send_adapters, front, replica))
        for engine in self._engines.values():
            self._connect(front, engine)

    def on_front_ended(self, front: FrontProcess) -> None:
        if self._fronts.pop(front.id, None):
            for engine in self._engines.values():
                if engine.handle:
                    engine.handle.post(Detach(front.id))
            for names in self._adapters.values():
                names.detach_front(front.id)

    def on_adapters(self, front: FrontProcess, report: AdapterList) -> None:
        for registration in report.registrations:
            self._adapters[report.replica].change(front.id, registration)

    def on_engine_ready(self, engine: _EngineReplica) -> None:
        for front in self._fronts.values():
            self._connect(front, engine)

    def on_engine_progress(self, engine: _EngineReplica, step: Progress) -> None:
        for front in self._fronts.values():
            front.post(EngineStarting(engine.name, step))

    def on_engine_expected(self, engine: _EngineReplica, seconds: float) -> None:
        for front in self._fronts.values():
            front.post(EngineExpected(engine.name, seconds))

    def on_engine_lost(self, engine: _EngineReplica) -> None:
        for front in self._fronts.values():
            front.post(EngineLost(engine.name))

    def on_given_up(self) -> None:
        fronts = self._front_supervisors
        lost = any(all(engine.supervisor.given_up for engine in engines) for engines in self._models)
        if lost or (fronts and all(one.given_up for one in fronts)):
            self._over.set()

    def check(self, replica: _EngineReplica, info: ModelInfo) -> None:
        """Raises StartupError if the engine of a replica serves another checkpoint than others of its model."""
        [others] = [engines for engines in self._models if replica in engines]
        if any(engine.info and engine.info.fingerprint != info.fingerprint for engine in others):
            raise StartupError("the engines serve different models; give all of them the same checkpoint")

    async def _cut_off(self) -> None:
        """Let each front end its calls at once, and wait for its end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CUT_OFF_SECONDS):
                await asyncio.gather(*(front.cut_off() for front in self._fronts.values()))

    def _make_front(self, name: str, main: FrontMain, drain_seconds: float) -> FrontProcess:
        return FrontProcess(self, name, partial(main, restarted=self._started), drain_seconds)

    def _connect(self, front: FrontProcess, engine: _EngineReplica) -> None:
        if engine.handle:
            assert engine.info
            address, restarts = engine.handle.address, engine.supervisor.restarts.count
            front.post(EngineReady(engine.name, address, front.id, engine.info, restarts))
        else:
            front.post(EngineExpected(engine.name, engine.supervisor.restarts.seconds_left))


def socket_fault() -> str:
    """The reason for which a host cannot connect fronts and engines, with the remedy; empty without one."""
    parent, limit = tempfile.gettempdir(), zmq.IPC_PATH_MAX_LEN - NAME_LENGTH
    if (length := len(os.fsencode(parent))) <= limit:
        return ""
    return (
        f"the folder for temporary files, {parent}, has a path of {length} bytes; with the sockets between fronts "
        f"and engines the limit is {limit}; set TMPDIR to a shorter one"
    )


class FrontProcess(ChildProcess):
    """A front in a process of its own, which the host connects to every engine."""

    _numbers = itertools.count()

    def __init__(self, host: EngineHost, name: str, main: Callable[[Addresses], None], drain_seconds: float) -> None:
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

    async def reports(self) -> AsyncGenerator[list[Report]]:
        async with contextlib.aclosing(super().reports()) as batches:
            async for reports in batches:
                for report in reports:
                    if isinstance(report, AdapterList):
                        self._host.on_adapters(self, report)
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


class _EngineReplica:
    """The replica of an engine, which all fronts use."""

    def __init__(
        self, host: EngineHost, name: str, make_handle: HandleFactory, supervision: SupervisionSettings
    ) -> None:
        self.name = name
        self.handle: Any = None
        self.info: ModelInfo | None = None
        self.supervisor = Supervisor(
            make_handle,
            supervision,
            on_ready=self._on_ready,
            on_lost=self._on_lost,
            on_given_up=host.on_given_up,
        )
        self.supervisor.restarts.on_expected = partial(host.on_engine_expected, self)
        self._host = host

    async def start(self) -> None:
        """Start the engine, also after a loss, with reports of its progress to this context and to all fronts."""
        receive = progress.listener()

        def on_progress(step: Progress) -> None:
            receive(step)
            self._host.on_engine_progress(self, step)

        with progress.reported_to(on_progress):
            await self.supervisor.start()

    def _on_ready(self, handle: Handle, info: ModelInfo) -> None:
        self._host.check(self, info)
        self.handle, self.info = handle, info
        self._host.on_engine_ready(self)

    def _on_lost(self) -> None:
        self.handle = None
        self._host.on_engine_lost(self)


def _send_adapters(front: FrontProcess, replica: str, registrations: tuple[Registration, ...]) -> None:
    front.post(AdapterList(replica, registrations))


async def _await_all(starts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await coroutines concurrently. Raises the first error."""
    try:
        async with asyncio.TaskGroup() as group:
            for start in starts:
                group.create_task(start)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
