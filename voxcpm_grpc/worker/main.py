"""The engine process: load a model, then the loop between its letters and the desk of one Engine."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import zmq

from voxcpm_grpc.errors import StartupError, VoxCPMError
from voxcpm_grpc.ipc import child_process, messages
from voxcpm_grpc.ipc.child_process import Addresses
from voxcpm_grpc.ipc.messages import Attach, Detach, Report
from voxcpm_grpc.settings.schema import EngineSettings
from voxcpm_grpc.worker.dispatcher import Dispatcher, EngineLike, Heartbeat

logger = logging.getLogger(__name__)

LINGER_MS = 1000  # for last words to a front that still reads
OWNER = ""  # the process that spawned this one


@dataclass(frozen=True, slots=True)
class LoadEngine:
    """Make the Engine of a checkpoint directory, in the process that calls it. Raises StartupError."""

    directory: Path
    name: str
    settings: EngineSettings
    engines: int = 1  # of this host, this one included

    def __call__(self) -> EngineLike:
        # Imported here: only engine processes know torch, and the front imports this module to spawn them.
        from voxcpm_grpc.engine.load import load_engine

        return load_engine(self.directory, self.name, self.settings, engines=self.engines)


def main(addresses: Addresses, make_engine: Callable[[], EngineLike], log_level: str) -> None:
    """Serve one engine to the process that listens at `addresses` until it says Stop, dies, or SIGTERM comes.

    Runs in a process of its own, spawned by `handles.ProcessHandle`; exits with a status other than 0 on a fault.
    """
    child_process.begin(log_level)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the front decides what it means
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with zmq.Context() as context, Mail(context, addresses.letters) as mail:
        pulse = Heartbeat()
        with _beating(pulse, context, addresses.beats):
            engine, word = start(make_engine, pulse)
            mail.send(OWNER, [word])
            failed = engine is None or _serve(engine, pulse, mail)
    if failed:
        os._exit(1)  # at once: what a device or its libraries would still tidy up might hang


def _serve(engine: EngineLike, pulse: Heartbeat, mail: Mail) -> bool:
    """Until Stop; returns whether the engine failed before."""
    device = engine.info.device
    name = multiprocessing.current_process().name
    child_process.take_title(name.replace("auto", device if ":" in device else f"{device}:0"))
    try:
        run(Dispatcher(engine, pulse), mail)
    except Exception:
        logger.critical("the engine failed; its process ends", exc_info=True)
        return True
    return False


class Mail:
    """The letters of an engine: a socket to its owner, and one to each front that was attached."""

    def __init__(self, context: zmq.Context, owner: str) -> None:
        self._context = context
        self._sockets: dict[str, zmq.Socket] = {}
        self._poller = zmq.Poller()
        self._connect(OWNER, owner)

    def __enter__(self) -> Mail:
        return self

    def __exit__(self, *_: object) -> None:
        for socket in self._sockets.values():
            socket.close()

    def receive(self, *, wait: bool) -> Iterator[tuple[str, memoryview]]:
        """Every letter that is there, with the name of its sender; `wait` sleeps until there is one."""
        if wait:
            self._poller.poll()
        for name, socket in list(self._sockets.items()):
            with contextlib.suppress(zmq.Again):
                while True:
                    yield name, socket.recv(zmq.DONTWAIT, copy=False).buffer

    def send(self, name: str, reports: list[Report]) -> None:
        """Never waits: to a front that has gone meanwhile nothing is sent."""
        if socket := self._sockets.get(name):
            with contextlib.suppress(zmq.Again):
                socket.send(messages.encode_reports(reports), zmq.DONTWAIT, copy=False)

    def see_to(self, errand: Attach | Detach) -> None:
        match errand:
            case Attach(front, address):
                self._connect(front, address)
            case Detach(front):
                if socket := self._sockets.pop(front, None):
                    self._poller.unregister(socket)
                    socket.close(0)

    def _connect(self, name: str, address: str) -> None:
        socket = self._sockets[name] = self._context.socket(zmq.PAIR)
        socket.set_hwm(0)  # nothing is dropped; credit and the front's admission bound what waits
        socket.linger = LINGER_MS
        socket.connect(address)
        self._poller.register(socket, zmq.POLLIN)


def run(desk: Dispatcher, mail: Mail) -> None:
    """The loop, until Stop: every letter that has come, one step, one letter to each front of all that this brought."""
    while not desk.stopped:
        batches = desk.round(mail.receive(wait=not desk.busy))
        for errand in desk.errands():
            mail.see_to(errand)
        for name, reports in batches.items():
            mail.send(name, reports)


def start(
    make_engine: Callable[[], EngineLike], pulse: Heartbeat
) -> tuple[EngineLike, messages.Ready] | tuple[None, messages.StartFailed]:
    """The engine, warmed up, and its first word to the front; or none, and why."""
    try:
        engine = make_engine()
        pulse.slowest_step = engine.warm_up()
    except Exception as error:
        expected = isinstance(error, (StartupError, VoxCPMError))
        if not expected:
            logger.exception("the engine could not start")
        message = str(error) if expected else f"the engine could not start: {type(error).__name__}: {error}"
        return None, messages.StartFailed(message)
    return engine, messages.Ready(engine.info)


@contextlib.contextmanager
def _beating(pulse: Heartbeat, context: zmq.Context, address: str) -> Iterator[None]:
    """Sends beats from a thread of its own: it falls silent when the process is stopped or held up as a whole, and
    tells of a loop that is caught in a step."""
    over = threading.Event()

    def beat() -> None:
        with context.socket(zmq.PUSH) as socket:
            socket.linger = 0
            socket.connect(address)
            while True:
                with contextlib.suppress(zmq.Again):  # a front that does not read misses nothing by it
                    socket.send(messages.encode_reports([pulse.beat()]), zmq.DONTWAIT)
                if over.wait(messages.BEAT_SECONDS):
                    return

    thread = threading.Thread(target=beat, name="beats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
