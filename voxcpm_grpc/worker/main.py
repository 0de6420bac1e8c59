"""The process of an engine: loads the model, then runs a dispatcher between its connections and the engine."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from socket import socketpair

import zmq

from voxcpm_grpc import checkpoint, progress
from voxcpm_grpc.engine.compilation import compile_later
from voxcpm_grpc.errors import StartupError, VoxCPMError
from voxcpm_grpc.ipc import child_process, messages
from voxcpm_grpc.ipc.child_process import Addresses
from voxcpm_grpc.ipc.messages import Ready, Report, StartFailed, Starting
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.worker.dispatcher import OWNER, Dispatcher, EngineLike
from voxcpm_grpc.worker.heartbeat import StepTimer, sending_heartbeats

logger = logging.getLogger(__name__)

LINGER_MS = 1000  # for the last reports to a front that still reads


@dataclass(frozen=True, slots=True)
class LoadEngine:
    """Loads the engine of a checkpoint directory in the process that calls it. Raises StartupError.

    engines: the number of engines on this host, this one included
    restarted: True if the engine replaces a lost one
    """

    directory: Path
    name: str
    settings: EngineSettings
    engines: int = 1
    restarted: bool = False

    def __call__(self) -> EngineLike:
        with ThreadPoolExecutor(1) as threads:
            fingerprint = threads.submit(checkpoint.fingerprint, self.directory).result
            progress.report("the model is loading: PyTorch is being imported")
            # Imported here, because fronts import this module and must not import torch. The import takes seconds, and
            # so does the fingerprint.
            from voxcpm_grpc.engine.load import load_engine

            engine = load_engine(
                self.directory,
                self.name,
                self.settings,
                engines=self.engines,
                fingerprint=fingerprint,
                restarted=self.restarted,
            )
        if engine.compilation:
            compile_later(engine.compilation)
        return engine


def main(addresses: Addresses, make_engine: Callable[[], EngineLike], log: LogOptions) -> None:
    """Serve one engine to the process that listens at `addresses`, until Stop, SIGTERM or the end of that process.

    Runs in a process of its own, which exits with a status other than 0 after an error.
    """
    child_process.set_up(log)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the front stops the engine
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # a start: threads that compile would be waited for
    with zmq.Context() as context, Connections(context, addresses.messages) as connections:
        timer = StepTimer()
        with connections.woken_by_signals(), sending_heartbeats(timer, context, addresses.heartbeats):
            with progress.reported_to(progress.paced(lambda step: connections.send(OWNER, [Starting(step)]))):
                engine, report = start_engine(make_engine, timer)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            connections.send(OWNER, [report])
            failed = engine is None or _serve(engine, timer, connections)
    if failed:
        os._exit(1)  # the cleanup of a device and its libraries might hang


def _serve(engine: EngineLike, timer: StepTimer, connections: Connections) -> bool:
    """Run the engine until Stop; returns True if it fails before."""
    device = engine.info.device
    name = multiprocessing.current_process().name
    if name.endswith("auto"):
        name = name.removesuffix("auto") + (device if ":" in device else f"{device}:0")
    child_process.set_title(name)
    try:
        run(engine, timer, connections)
    except Exception:
        logger.critical("the engine failed; its process ends", exc_info=True)
        return True
    return False


class Connections:
    """The sockets of an engine: one to its owner, and one to each attached front."""

    def __init__(self, context: zmq.Context, owner_address: str) -> None:
        self._context = context
        self._sockets: dict[str, zmq.Socket] = {}
        self._poller = zmq.Poller()
        self._wakes, self._woken = socketpair()
        self._wakes.setblocking(False)
        self._woken.setblocking(False)
        self._poller.register(self._woken, zmq.POLLIN)
        self.attach(OWNER, owner_address)

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        for socket in (*self._sockets.values(), self._wakes, self._woken):
            socket.close()

    def wake(self) -> None:
        """End the wait of `inbox`, now or the next time. For other threads."""
        with contextlib.suppress(OSError):  # the connections are closed, or enough wakes are pending
            self._wakes.send(b"\0")

    @contextlib.contextmanager
    def woken_by_signals(self) -> Iterator[None]:
        """End a wait of `inbox` at a signal in this block. For the main thread.

        Without this, a signal just before the wait, or one that another thread receives, would not end it.
        """
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)

    def attach(self, front: str, address: str) -> None:
        """Connect to a front."""
        socket = self._sockets[front] = self._context.socket(zmq.PAIR)
        socket.set_hwm(0)  # no message is dropped; credit and the admission of requests bound the queue
        socket.linger = LINGER_MS
        socket.connect(address)
        self._poller.register(socket, zmq.POLLIN)

    def detach(self, front: str) -> None:
        """Disconnect from a front. An unknown one is ignored."""
        if socket := self._sockets.pop(front, None):
            self._poller.unregister(socket)
            socket.close(0)

    def inbox(self, *, wait: bool) -> Iterator[tuple[str, memoryview]]:
        """Yield each message that has arrived, with the name of its sender.

        `wait` blocks until there is one, or until `wake` is called.
        """
        if wait:
            self._poller.poll()
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        for front, socket in list(self._sockets.items()):
            with contextlib.suppress(zmq.Again):
                while not socket.closed:  # a message from the owner may detach a front
                    yield front, socket.recv(zmq.DONTWAIT, copy=False).buffer

    def send(self, front: str, reports: list[Report]) -> None:
        """Send reports to a front; never waits. Reports to a front that was detached are dropped."""
        if socket := self._sockets.get(front):
            with contextlib.suppress(zmq.Again):
                socket.send(messages.encode_reports(reports), zmq.DONTWAIT, copy=False)


def run(engine: EngineLike, timer: StepTimer, connections: Connections) -> None:
    """Run the engine until Stop. Each round reads all messages, runs one step, and sends one message to each front."""
    dispatcher = Dispatcher(engine, timer, attach=connections.attach, detach=connections.detach, wake=connections.wake)
    while not dispatcher.stopped:
        outbox = dispatcher.run_once(connections.inbox(wait=not dispatcher.busy))
        for front, reports in outbox.items():
            connections.send(front, reports)


def start_engine(
    make_engine: Callable[[], EngineLike], timer: StepTimer
) -> tuple[EngineLike, Ready] | tuple[None, StartFailed]:
    """Make an engine and warm it up. Returns it and the report for the front, or None and the reason."""
    try:
        engine = make_engine()
        timer.slowest_step = engine.warm_up()
    except Exception as error:
        expected = isinstance(error, (StartupError, VoxCPMError))
        if not expected:
            logger.exception("the engine could not start")
        message = str(error) if expected else f"the engine could not start: {type(error).__name__}: {error}"
        return None, StartFailed(message)
    return engine, Ready(engine.info)
