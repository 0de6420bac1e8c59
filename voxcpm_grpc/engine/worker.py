"""The engine process: load a model, then the mailbox loop round one Engine."""

from __future__ import annotations

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
from typing import Protocol

import numpy as np
import zmq

from voxcpm_grpc.config import EngineSettings
from voxcpm_grpc.engine import messages
from voxcpm_grpc.engine.messages import Cancel, Credit, Decode, Encode, Failed, GetStats, Report, Stop, Submit
from voxcpm_grpc.errors import Internal, StartupError, VoxCPMError
from voxcpm_grpc.request import Admitted, AudioChunk, Event, Finished, ModelInfo, Piece, Request, Stats

logger = logging.getLogger(__name__)

LINGER_MS = 1000  # for last words to a front that still reads


class EngineLike(Protocol):
    """What the loop needs of an Engine. `busy` must not count streams that wait for credit, or the loop would spin."""

    @property
    def info(self) -> ModelInfo: ...
    @property
    def busy(self) -> bool: ...
    def add(self, request: Request, credit: int) -> None: ...
    def grant(self, id: str, chunks: int) -> None: ...
    def cancel(self, id: str) -> None: ...
    def encode(self, id: str, waveform: np.ndarray, *, pad_left: bool) -> None: ...
    def decode(self, id: str, latents: np.ndarray) -> None: ...
    def step(self) -> list[tuple[str, Event | Piece | VoxCPMError]]: ...
    def stats(self) -> Stats: ...


@dataclass(frozen=True, slots=True)
class LoadEngine:
    """Make the Engine of a checkpoint directory, in the process that calls it. Raises StartupError."""

    directory: Path
    name: str
    settings: EngineSettings

    def __call__(self) -> EngineLike:
        # Imported here: only engine processes know torch, and the front imports this module to spawn them.
        from voxcpm_grpc.engine.load import load_engine

        return load_engine(self.directory, self.name, self.settings)


def main(address: str, make_engine: Callable[[], EngineLike], log_level: str) -> None:
    """Serve one engine to the front that listens at `address` until it says Stop, dies, or SIGTERM comes.

    Runs in a process of its own, spawned by `handles.ProcessHandle`; exits with a status other than 0 on a fault.
    """
    logging.basicConfig(
        level=log_level.upper(),
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s {multiprocessing.current_process().name} %(name)s: %(message)s",
    )
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the front decides what it means
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    _follow_parent()
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.set_hwm(0)  # nothing is dropped; credit and the front's admission bound what waits
        socket.linger = LINGER_MS
        socket.connect(address)
        engine = _start(make_engine, socket)
        try:
            run(engine, socket)
        except Exception:
            logger.critical("the engine failed; its process ends", exc_info=True)
            sys.exit(1)


def run(engine: EngineLike, socket: zmq.Socket) -> None:
    """The mailbox loop, until Stop: every command that has come, one step, one message of all that this brought.

    Faults of a command or a request end that request alone; what `step` raises, this raises.
    """
    while True:
        reports: list[Report] = []
        for data in _mail(socket, wait=not engine.busy):
            try:
                command = messages.decode_command(data)
                if isinstance(command, Stop):
                    return
                reports += _obey(engine, command)
            except Exception as error:
                reports += _refuse(engine, messages.command_id(data), error)
        if engine.busy:
            reports += [_report(id, result) for id, result in engine.step()]
        if reports:
            socket.send(messages.encode_reports(reports), copy=False)


def _start(make_engine: Callable[[], EngineLike], socket: zmq.Socket) -> EngineLike:
    try:
        engine = make_engine()
    except Exception as error:
        expected = isinstance(error, (StartupError, VoxCPMError))
        if not expected:
            logger.exception("the engine could not start")
        message = str(error) if expected else f"the engine could not start: {type(error).__name__}: {error}"
        socket.send(messages.encode_reports([messages.StartFailed(message)]))
        sys.exit(1)
    socket.send(messages.encode_reports([messages.Ready(engine.info)]))
    return engine


def _mail(socket: zmq.Socket, *, wait: bool) -> Iterator[memoryview]:
    """Every message that is there; `wait` sleeps until there is one."""
    flags = 0 if wait else zmq.DONTWAIT
    while True:
        try:
            frame = socket.recv(flags, copy=False)
        except zmq.Again:
            return
        yield frame.buffer
        flags = zmq.DONTWAIT


def _obey(engine: EngineLike, command: messages.Command) -> list[Report]:
    match command:
        case Submit(request, credit):
            engine.add(request, credit)
        case Credit(id, chunks):
            engine.grant(id, chunks)
        case Cancel(id):
            engine.cancel(id)
        case Encode(id, waveform, pad_left):
            engine.encode(id, waveform, pad_left=pad_left)
        case Decode(id, latents):
            engine.decode(id, latents)
        case GetStats(id):
            return [messages.Statistics(id, engine.stats())]
    return []


def _refuse(engine: EngineLike, id: str, error: Exception) -> list[Report]:
    if isinstance(error, VoxCPMError):
        return [Failed.of(id, error)]
    logger.error("request %s failed", id, exc_info=error)
    engine.cancel(id)  # nobody listens from now on: it must not keep a slot
    return [Failed.of(id, Internal())]


def _report(id: str, result: Event | Piece | VoxCPMError) -> Report:
    match result:
        case Admitted():
            return messages.Began(id, result)
        case AudioChunk():
            return messages.Spoke(id, result)
        case Finished():
            return messages.Ended(id, result)
        case Piece():
            return messages.Coded(id, result)
        case VoxCPMError():
            return Failed.of(id, result)


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
