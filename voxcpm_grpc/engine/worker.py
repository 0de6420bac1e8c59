"""The engine process: load a model, then the loop that carries letters to and from the desk of one Engine."""

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
from multiprocessing import connection
from pathlib import Path

import zmq

from voxcpm_grpc.config import EngineSettings
from voxcpm_grpc.engine import messages
from voxcpm_grpc.engine.desk import Desk, EngineLike, Pulse
from voxcpm_grpc.errors import StartupError, VoxCPMError

logger = logging.getLogger(__name__)

LINGER_MS = 1000  # for last words to a front that still reads
FRONT = "front"


@dataclass(frozen=True, slots=True)
class LoadEngine:
    """Make the Engine of a checkpoint directory, in the process that calls it. Raises StartupError."""

    directory: Path
    name: str
    settings: EngineSettings
    cpu_engines: int = 1  # of this host, this one included

    def __call__(self) -> EngineLike:
        # Imported here: only engine processes know torch, and the front imports this module to spawn them.
        from voxcpm_grpc.engine.load import load_engine

        return load_engine(self.directory, self.name, self.settings, cpu_engines=self.cpu_engines)


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the front listens: for the loop's letters, and for the beats beside them."""

    letters: str
    beats: str


def main(addresses: Addresses, make_engine: Callable[[], EngineLike], log_level: str) -> None:
    """Serve one engine to the front that listens at `addresses` until it says Stop, dies, or SIGTERM comes.

    Runs in a process of its own, spawned by `handles.ProcessHandle`; exits with a status other than 0 on a fault.
    """
    name = multiprocessing.current_process().name
    logging.basicConfig(
        level=log_level.upper(),
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s {name} %(name)s: %(message)s",
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the front decides what it means
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _take_title(name)
    _follow_parent()
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.set_hwm(0)  # nothing is dropped; credit and the front's admission bound what waits
        socket.linger = LINGER_MS
        socket.connect(addresses.letters)
        pulse = Pulse()
        with _beating(pulse, context, addresses.beats):
            engine, word = start(make_engine, pulse)
            socket.send(messages.encode_reports([word]))
            if engine is None:
                sys.exit(1)
            device = engine.info.device
            _take_title(name.replace("auto", device if ":" in device else f"{device}:0"))
            try:
                run(Desk(engine, pulse), socket)
            except Exception:
                logger.critical("the engine failed; its process ends", exc_info=True)
                sys.exit(1)


def run(desk: Desk, socket: zmq.Socket) -> None:
    """The loop, until Stop: every command that has come, one step, one message of all that this brought."""
    while not desk.stopped:
        for reports in desk.round(_mail(socket, wait=not desk.busy)).values():
            socket.send(messages.encode_reports(reports), copy=False)


def start(
    make_engine: Callable[[], EngineLike], pulse: Pulse
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


def _mail(socket: zmq.Socket, *, wait: bool) -> Iterator[tuple[str, memoryview]]:
    """Every message that is there; `wait` sleeps until there is one."""
    flags = 0 if wait else zmq.DONTWAIT
    while True:
        try:
            frame = socket.recv(flags, copy=False)
        except zmq.Again:
            return
        yield FRONT, frame.buffer
        flags = zmq.DONTWAIT


@contextlib.contextmanager
def _beating(pulse: Pulse, context: zmq.Context, address: str) -> Iterator[None]:
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


def _take_title(name: str) -> None:
    """What `ps` and `top` show."""
    with contextlib.suppress(ImportError):  # a comfort that a bare machine may lack
        from setproctitle import setproctitle

        setproctitle(f"voxcpm-grpc {name}")


def _follow_parent() -> None:
    """End this process as soon as its parent has ended, whatever it is doing: loading, stepping or waiting."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def follow() -> None:
        connection.wait([parent.sentinel])
        logger.critical("the front is gone; its engine ends")
        os._exit(1)

    threading.Thread(target=follow, name="follow-parent", daemon=True).start()
