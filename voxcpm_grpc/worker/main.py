"""The process of an engine: loads the model, then runs a dispatcher between its sockets and the engine."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import zmq

from voxcpm_grpc import checkpoint, progress
from voxcpm_grpc.engine.start.compilation import compile_later
from voxcpm_grpc.errors import StartupError, VoxCPMError
from voxcpm_grpc.helper_process import set_title
from voxcpm_grpc.imports import importing
from voxcpm_grpc.ipc.messages import Ready, StartFailed, Starting
from voxcpm_grpc.ipc.process import set_up
from voxcpm_grpc.ipc.sockets import OWNER, Addresses, EngineSocket
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.worker.dispatcher import Dispatcher
from voxcpm_grpc.worker.engine_like import EngineLike
from voxcpm_grpc.worker.heartbeat import StepTimer, sending_heartbeats

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadEngine:
    """Loads the engine of a checkpoint directory in the process that calls it. Raises StartupError.

    engines: the number of engines on this host, this one included
    restarted: True if the engine replaces a lost one
    registers_loras: True if the engine may get LoRA adapters while it runs
    """

    directory: Path
    name: str
    settings: EngineSettings
    engines: int = 1
    restarted: bool = False
    registers_loras: bool = False

    def __call__(self) -> EngineLike:
        with ThreadPoolExecutor(1) as threads:
            fingerprint = threads.submit(checkpoint.fingerprint, self.directory).result
            progress.report("the model is loading: PyTorch is being imported")
            # The import is here, because fronts import this module and must not import torch. The import takes seconds,
            # and so does the fingerprint.
            with importing("torch", once=True):
                from voxcpm_grpc.engine.load import load_engine

            engine = load_engine(
                self.directory,
                self.name,
                self.settings,
                engines=self.engines,
                fingerprint=fingerprint,
                restarted=self.restarted,
                registers_loras=self.registers_loras,
            )
        if engine.compilation:
            compile_later(engine.compilation)
        return engine


def main(addresses: Addresses, make_engine: Callable[[], EngineLike], log: LogOptions) -> None:
    """Serve one engine to all fronts that connect, until Stop of its owner, SIGTERM or the end of the owner.

    SIGUSR1 lets its owner replace it, when other engines have gone on with its streams.
    Runs in a process of its own, which exits with a status other than 0 after an error.
    """
    set_up(log)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # during a start, an exit would wait for threads that compile
    with zmq.Context() as context, EngineSocket(context, addresses) as socket:
        timer = StepTimer()
        if leave := getattr(signal, "SIGUSR1", None):  # Windows lacks it
            signal.signal(leave, lambda *_: setattr(timer, "leaves", True))
        with socket.woken_by_signals(), sending_heartbeats(timer, context, addresses.reports):
            with progress.reported_to(progress.paced(lambda step: socket.send(OWNER, [Starting(step)]))):
                engine, report = start_engine(make_engine, timer, socket.address)
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            socket.send(OWNER, [report])
            failed = engine is None or _serve(engine, timer, socket)
    if failed:
        os._exit(1)  # the cleanup of a device and its libraries might hang


def _serve(engine: EngineLike, timer: StepTimer, socket: EngineSocket) -> bool:
    """Run the engine until Stop; returns True if it fails before."""
    device = engine.info.device
    name = multiprocessing.current_process().name
    if name.endswith("auto"):
        name = name.removesuffix("auto") + (device if ":" in device else f"{device}:0")
    set_title(name)
    try:
        run(engine, timer, socket)
    except Exception:
        logger.critical("the engine failed; its process ends", exc_info=True)
        return True
    return False


def run(engine: EngineLike, timer: StepTimer, socket: EngineSocket) -> None:
    """Run the engine until Stop. Each round reads all messages, runs one step, and sends one message to each front."""
    dispatcher = Dispatcher(engine, timer, wake=socket.wake)
    while not dispatcher.stopped:
        outbox = dispatcher.run_once(socket.inbox(wait=not dispatcher.busy))
        for front, reports in outbox.items():
            socket.send(front, reports)


def start_engine(
    make_engine: Callable[[], EngineLike], timer: StepTimer, address: str = ""
) -> tuple[EngineLike, Ready] | tuple[None, StartFailed]:
    """Make an engine and warm it up. Returns it and the report for its owner, or None and the reason.

    address: where fronts connect
    """
    try:
        engine = make_engine()
        timer.slowest_step = engine.warm_up()
    except Exception as error:
        expected = isinstance(error, (StartupError, VoxCPMError))
        if not expected:
            logger.exception("the engine could not start")
        message = str(error) if expected else f"the engine could not start: {type(error).__name__}: {error}"
        return None, StartFailed(message)
    return engine, Ready(engine.info, address)
