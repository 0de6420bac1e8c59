"""The standby process: it imports what an engine needs, waits, and becomes the next engine of its host.

A server starts the first one before it imports its own modules, so this module imports little.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from voxcpm_grpc import logs
from voxcpm_grpc.helper_process import SPAWN, set_title
from voxcpm_grpc.imports import importing
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.machine import gpus, priority

if TYPE_CHECKING:
    from voxcpm_grpc.ipc.sockets import Addresses

logger = logging.getLogger(__name__)

NAME = "standby"


class Order(NamedTuple):
    """The process that a standby process becomes: its name, its main function and the argument of that."""

    name: str
    main: Callable[[Addresses], None]
    addresses: Addresses


class StandbyProcess:
    """The handle of a process that stands by, which starts when it is made. `orders` is our end of its pipe."""

    def __init__(self, prepare: Callable[[], object], log: LogOptions = logs.DEFAULT) -> None:
        """Blocks while the process starts. `prepare` must be picklable. Raises OSError."""
        self.orders, theirs = SPAWN.Pipe()
        self.process: SpawnProcess = SPAWN.Process(target=stand_by, args=(theirs, prepare, log), name=NAME, daemon=True)
        self.taken = False
        try:
            self.process.start()
        except BaseException:
            self.orders.close()
            raise
        finally:
            theirs.close()  # only the process holds it, so that the pipe ends with it

    def become(self, name: str, main: Callable[[Addresses], None], addresses: Addresses) -> bool:
        """Let the process run `main(addresses)` under a name. Returns False if it has ended."""
        try:
            self.orders.send(Order(name, main, addresses))
        except OSError:  # its end of the pipe is closed, or ours
            return False
        self.process.name = name
        self.taken = True
        return True

    def close(self) -> int | None:
        """Let go of the process: kill it, and return its status, unless it has become another. May be called again."""
        if self.taken or self.orders.closed:
            self.orders.close()
            return None
        self.orders.close()
        self.process.kill()
        self.process.join()
        status = self.process.exitcode
        self.process.close()
        return status


@dataclass(frozen=True, slots=True)
class PrepareFirst:
    """Imports what the first engine of a server needs, which reports what cannot be imported.

    kernels: also those of a GPU, if there is one, whose driver is initialized beside the imports
    """

    kernels: bool

    def __call__(self) -> None:
        with contextlib.suppress(Exception), ThreadPoolExecutor(1) as threads:
            has_cuda = self.kernels and gpus.pytorch_has_cuda()
            counted = threads.submit(gpus.initialize) if has_cuda else None
            with importing("torch", once=True):
                from voxcpm_grpc.engine.load import prepare_all

                if counted and counted.result():
                    with contextlib.suppress(Exception):  # PyTorch is there, and not every engine needs kernels
                        prepare_all()


@dataclass(frozen=True, slots=True)
class PrepareEngine:
    """Imports what engines import, and reads the checkpoints in `directories`. Uses no device, and so no GPU memory."""

    directories: tuple[Path, ...]

    def __call__(self) -> None:
        from voxcpm_grpc import checkpoint

        if sys.platform == "linux":  # a thread has a priority of its own there; the engine needs the normal one
            priority.lower(threading.get_native_id())
        with importing("torch"):
            from voxcpm_grpc.engine.load import prepare_all

            prepare_all()
        for directory in self.directories:
            with contextlib.suppress(OSError):  # the engine reports it
                checkpoint.fingerprint(directory)


def stand_by(orders: Connection, prepare: Callable[[], object], log: LogOptions) -> None:
    """The main function of the process: run the order that arrives, and end without one if the other end closes.

    An empty message reports the end of `prepare`, which goes on if an order arrives before it.
    """
    name = multiprocessing.current_process().name
    logs.set_up(log, name)
    set_title(name)
    threading.Thread(target=_prepare, args=(orders, prepare), name="preparation", daemon=True).start()
    try:
        order: Order = orders.recv()
    except (EOFError, ConnectionError):
        os._exit(0)  # the preparation may be in the middle of an import
    multiprocessing.current_process().name = order.name
    order.main(order.addresses)


def _prepare(orders: Connection, prepare: Callable[[], object]) -> None:
    try:
        prepare()
        with contextlib.suppress(ConnectionError):  # the other end has just been closed
            orders.send_bytes(b"")
    except Exception:
        logger.exception("the standby process cannot be prepared")
        os._exit(1)
