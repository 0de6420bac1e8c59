"""A front in a process of its own, and its connection to its host, whose engines it uses."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
from collections.abc import AsyncIterator, Callable, Iterable

import zmq
import zmq.asyncio

from voxcpm_grpc import progress
from voxcpm_grpc.aio.tasks import cancel_and_wait, keep_running
from voxcpm_grpc.ipc import encoding, messages, process
from voxcpm_grpc.ipc.front_messages import AskFront, FromFront, FrontAnswers
from voxcpm_grpc.ipc.messages import (
    AdapterList,
    EngineDraining,
    EngineLost,
    EngineReady,
    EngineStarting,
    Heartbeat,
    ManageEngine,
    Ready,
    Registration,
    Report,
    StartFailed,
    Stop,
)
from voxcpm_grpc.ipc.sockets import LINGER_MS, Addresses, FrontSocket, unbounded
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.pool.adapter_catalog import OnChange
from voxcpm_grpc.pool.directory import EngineListener
from voxcpm_grpc.pool.engines.questions import FrontQuestions
from voxcpm_grpc.pool.estimates import UNKNOWN_SECONDS
from voxcpm_grpc.progress import Listener, Progress
from voxcpm_grpc.request import ModelInfo


class HostLink:
    """The connection of a front to its host.

    `stopped` is set when the front must drain and end, and `skip_delay` if it must do so without the drain delay.
    `cut_off` is called when it must end at once. `questions` are those of the host and of other fronts.
    """

    def __init__(self, commands: zmq.asyncio.Socket, reports: zmq.asyncio.Socket, name: str = "") -> None:
        self.stopped = asyncio.Event()
        self.skip_delay = False
        self.cut_off: Callable[[], object] = self.stopped.set
        self.questions = FrontQuestions(name, self.send)
        self._commands = commands
        self._reports = reports
        self._models: dict[str, HostEngines] = {}  # the keys are the names of the engines
        self._steps: dict[str, Progress] = {}  # each engine that starts has its latest step
        self._on_progress: Listener = progress.ignore

    def engines(self, names: Iterable[str]) -> HostEngines:
        """The engines of a model by their names."""
        found = HostEngines(self, names)
        self._models |= dict.fromkeys(found.engines, found)
        return found

    def report_progress(self) -> None:
        """Report the progress of all engines to this context, from their latest steps on."""
        self._on_progress = progress.listener()
        for step in self._steps.values():
            self._on_progress(step)

    def send_ready(self, info: ModelInfo) -> None:
        """Report that the front serves."""
        self.send(Ready(info))

    def send_start_failed(self, message: str) -> None:
        """Report that the front cannot serve; `message` tells the operator why."""
        self.send(StartFailed(message))

    def send(self, report: Report) -> None:
        """Send a report to the host; never waits."""
        self._reports.send(encoding.encode([report]))

    async def receive(self) -> None:
        """Handle the commands of the host. Runs until cancelled."""
        while True:
            match encoding.decode_command(await self._commands.recv()):
                case EngineReady(engine) as ready:
                    self._steps.pop(engine, None)
                    self._models[engine].on_ready(ready)
                case EngineLost(engine, seconds):
                    self._models[engine].on_lost(engine, seconds)
                case EngineDraining(engine):
                    self._models[engine].on_draining(engine)
                case EngineStarting(step):
                    self._steps[step.source] = step
                    self._on_progress(step)
                case AdapterList(engine, registrations):
                    self._models[engine].names.on_change(registrations)
                case AskFront() as question:
                    self.questions.on_question(question)
                case FromFront() as message:
                    self.questions.on_message(message)
                case FrontAnswers() as answers:
                    self.questions.on_answers(answers)
                case Stop(at_once=True):
                    self.cut_off()
                case Stop(skip_delay):
                    self.skip_delay = skip_delay
                    self.stopped.set()


class HostEngines:
    """The engines of a model of the host, which starts and stops them; implements `directory.Engines`."""

    def __init__(self, host: HostLink, engines: Iterable[str]) -> None:
        self.engines = tuple(engines)
        self.names = HostNames(self.engines[0], host.send)
        self._host = host
        self._ready: dict[str, EngineReady] = {}
        self._serves = asyncio.Event()
        self._listeners: list[EngineListener] = []

    async def start(self) -> None:
        """Wait until one of the engines is ready."""
        self._host.report_progress()
        await self._serves.wait()

    async def close(self) -> None:
        self._listeners.clear()

    def watch(self, listener: EngineListener) -> None:
        """Follow the engines, of which the host has reported none yet."""
        self._listeners.append(listener)
        for engine in self.engines:
            listener.on_lost(engine, UNKNOWN_SECONDS)

    def connect(self, engine: str) -> FrontSocket:
        return FrontSocket(self._ready[engine].address, self._ready[engine].front)

    def on_ready(self, ready: EngineReady) -> None:
        self._ready[ready.engine] = ready
        self._serves.set()
        for listener in self._listeners:
            listener.on_ready(ready.engine, ready.info, ready.restarts)

    def drain(self, engine: str, *, restart: bool) -> None:
        self._host.send(ManageEngine(engine, drain=True, restart=restart))

    def resume(self, engine: str) -> None:
        self._host.send(ManageEngine(engine, drain=False, restart=False))

    def on_draining(self, engine: str) -> None:
        for listener in self._listeners:
            listener.on_draining(engine)

    def on_lost(self, engine: str, seconds: float) -> None:
        for listener in self._listeners:
            listener.on_lost(engine, seconds)


class HostNames:
    """The names of the LoRA adapters of a model, which the host keeps; implements `pool.adapter_catalog.NameOwner`.

    `engine` is the first one of the model, `send` sends a report to the host.
    """

    def __init__(self, engine: str, send: Callable[[Report], None]) -> None:
        self._engine = engine
        self._send = send
        self.on_change: OnChange = lambda _: None

    def attach_front(self, front: str, on_change: OnChange) -> None:
        self.on_change = on_change

    def change(self, front: str, registration: Registration) -> None:
        self._send(AdapterList(self._engine, (registration,)))


def set_up(log: LogOptions) -> None:
    """Set up the process of a front. Must run before anything else in it."""
    process.set_up(log)


@contextlib.asynccontextmanager
async def connected_to_host(addresses: Addresses) -> AsyncIterator[HostLink]:
    """Connect to the host, and send heartbeats, which prove that the event loop runs."""
    context = zmq.asyncio.Context()
    commands: zmq.asyncio.Socket = unbounded(context.socket(zmq.PULL))
    commands.connect(addresses.commands)
    reports: zmq.asyncio.Socket = unbounded(context.socket(zmq.PUSH))
    reports.linger = LINGER_MS
    reports.connect(addresses.reports)
    host = HostLink(commands, reports, multiprocessing.current_process().name)

    async def send_heartbeats() -> None:
        while True:
            host.send(Heartbeat(0.0, 0.0))
            await asyncio.sleep(messages.HEARTBEAT_SECONDS)

    tasks = (
        keep_running(send_heartbeats, "the heartbeats of a front"),
        keep_running(host.receive, "the connection to the host"),
    )
    try:
        yield host
    finally:
        await cancel_and_wait(*tasks)
        context.destroy()  # all its sockets close; an open one would block the end of the process
