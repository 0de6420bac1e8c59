"""A front in a process of its own, and its connections to its host and to the engines of the host."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import signal
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from functools import partial

import zmq
import zmq.asyncio

from voxcpm_grpc import progress
from voxcpm_grpc.ipc import messages, process
from voxcpm_grpc.ipc.messages import (
    AdapterList,
    AskFront,
    Command,
    EngineExpected,
    EngineLost,
    EngineReady,
    EngineStarting,
    FromFront,
    FrontAnswers,
    Heartbeat,
    Ready,
    Registration,
    Report,
    StartFailed,
    Stop,
)
from voxcpm_grpc.ipc.sockets import LINGER_MS, Addresses, FrontSocket, received, unbounded
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.pool.adapter_catalog import OnChange
from voxcpm_grpc.pool.background import cancel_and_wait, keep_running
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.handle import HandleFactory
from voxcpm_grpc.pool.host.questions import FrontQuestions
from voxcpm_grpc.pool.restarts import Restarts
from voxcpm_grpc.progress import Listener, Progress
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.engine import SupervisionSettings
from voxcpm_grpc.settings.types import MAX_SECONDS

PAUSE_SECONDS = 0.05  # short, because the start of a handle waits for the next engine
UNLIMITED = 1 << 62

SUPERVISION = SupervisionSettings(  # the host supervises the engines and reports the loss of one
    silence_seconds=MAX_SECONDS, step_seconds=MAX_SECONDS, restart_seconds=PAUSE_SECONDS, restart_limit=UNLIMITED
)


class HostConnection:
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
        self._attachments: dict[str, _Attachment] = {}  # by replica
        self._names: dict[str, HostNames] = {}  # by the first replica of each model

    def factories(self, replicas: Iterable[str]) -> list[HandleFactory]:
        """A factory for each replica of the host, whose handles wait until the replica has an engine."""
        made = {replica: _Attachment() for replica in replicas}
        self._attachments |= made
        return [partial(AttachedHandle, replica, attachment) for replica, attachment in made.items()]

    def restarts(self, replicas: Iterable[str]) -> list[Restarts]:
        """The restarts of these replicas, as the host counts and expects them."""
        return [self._attachments[replica].restarts for replica in replicas]

    def names(self, replicas: Iterable[str]) -> HostNames:
        """The names of the LoRA adapters of the model to which these replicas belong."""
        first = next(iter(replicas))
        return self._names.setdefault(first, HostNames(first, self.send))

    def send_ready(self, info: ModelInfo) -> None:
        """Report that the front serves."""
        self.send(Ready(info))

    def send_start_failed(self, message: str) -> None:
        """Report that the front cannot serve; `message` tells the operator why."""
        self.send(StartFailed(message))

    async def receive(self) -> None:
        """Handle the commands of the host. Runs until cancelled."""
        while True:
            match messages.decode_command(await self._commands.recv()):
                case EngineReady(replica) as ready:
                    self._attachments[replica].on_ready(ready)
                case EngineExpected(replica, seconds):
                    self._attachments[replica].restarts.expect(seconds)
                case EngineStarting(replica, step):
                    self._attachments[replica].on_progress(step)
                case EngineLost(replica):
                    self._attachments[replica].on_lost()
                case AdapterList(replica, registrations):
                    self._names[replica].on_change(registrations)
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

    def send(self, report: Report) -> None:
        self._reports.send(messages.encode_reports([report]))


class HostNames:
    """The names of the LoRA adapters of a model, which the host keeps; implements `pool.adapter_catalog.NameOwner`.

    `replica` is the first of the model, `send` sends a report to the host.
    """

    def __init__(self, replica: str, send: Callable[[Report], None]) -> None:
        self._replica = replica
        self._send = send
        self.on_change: OnChange = lambda _: None

    def attach_front(self, front: str, on_change: OnChange) -> None:
        self.on_change = on_change

    def change(self, front: str, registration: Registration) -> None:
        self._send(AdapterList(self._replica, (registration,)))


class _Attachment:
    """A replica's current engine, the event that is set when that engine is lost, and its restarts."""

    def __init__(self) -> None:
        self.restarts = Restarts()
        self._ready: asyncio.Future[EngineReady] = asyncio.get_running_loop().create_future()
        self._lost = asyncio.Event()
        self._listener: Listener = progress.ignore
        self._step: Progress | None = None  # the last one; it may arrive before the first `report_to`

    def report_to(self, listener: Listener) -> None:
        """Pass the progress of the next engine to a function."""
        self._listener = listener
        if self._step:
            listener(self._step)

    def on_progress(self, step: Progress) -> None:
        self._step = step
        self._listener(step)

    def on_ready(self, ready: EngineReady) -> None:
        self._step = None
        self.restarts.count = ready.restarts
        self._ready.set_result(ready)

    def on_lost(self) -> None:
        self._lost.set()
        self._lost = asyncio.Event()
        self._ready = asyncio.get_running_loop().create_future()

    async def engine(self) -> tuple[EngineReady, asyncio.Event]:
        """Wait for an engine; returns it, and the event of its loss."""
        lost = self._lost
        return await asyncio.shield(self._ready), lost


class AttachedHandle:
    """The engine of a replica of the host, which starts and stops it; implements `pool.handle.Handle`."""

    def __init__(self, replica: str, attachment: _Attachment) -> None:
        self.name = f"engine {replica}"
        self._attachment = attachment
        self._lost = asyncio.Event()
        self._front: FrontSocket | None = None

    async def start(self) -> ModelInfo:
        self._attachment.report_to(progress.forwarder(self.name))
        ready, self._lost = await self._attachment.engine()
        self._front = FrontSocket(ready.address, ready.front)
        return ready.info

    def post(self, command: Command) -> None:
        if self._front and not self._lost.is_set():
            self._front.post(command)

    def reports(self) -> AsyncGenerator[list[Report]]:
        assert self._front
        return received(self._lost, self._front.socket)

    async def close(self, *, force: bool = False) -> None:
        if self._front:
            self._front.close()


class AttachedPool(EnginePool):
    """The engines of a host, as one of its fronts uses them. Serves as soon as one of them is attached."""

    def __init__(self, host: HostConnection, replicas: Iterable[str]) -> None:
        found = tuple(replicas)
        super().__init__(host.factories(found), SUPERVISION, host.names(found), host.restarts(found))

    async def start(self) -> None:
        for replica in self.replicas:
            replica.supervisor.start_in_background()
        async for healthy in self.health():
            if healthy:
                return


def set_up(log: LogOptions) -> None:
    """Set up the process of a front. Must run before anything else in it."""
    process.set_up(log)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the host stops the front


@contextlib.asynccontextmanager
async def connected_to_host(addresses: Addresses) -> AsyncIterator[HostConnection]:
    """Connect to the host, and send heartbeats, which prove that the event loop runs."""
    context = zmq.asyncio.Context()
    commands: zmq.asyncio.Socket = unbounded(context.socket(zmq.PULL))
    commands.connect(addresses.commands)
    reports: zmq.asyncio.Socket = unbounded(context.socket(zmq.PUSH))
    reports.linger = LINGER_MS
    reports.connect(addresses.reports)
    host = HostConnection(commands, reports, multiprocessing.current_process().name)

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
        context.destroy()  # with all its sockets; an open one would block the end of the process
