"""The standby process: it imports what an engine needs, waits, and becomes the next engine of its host."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from voxcpm_grpc import checkpoint, logs
from voxcpm_grpc.imports import importing
from voxcpm_grpc.ipc.process import set_title
from voxcpm_grpc.ipc.sockets import Addresses
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.machine import priority

logger = logging.getLogger(__name__)


class Order(NamedTuple):
    """The process that a standby process becomes: its name, its main function and the argument of that."""

    name: str
    main: Callable[[Addresses], None]
    addresses: Addresses


@dataclass(frozen=True, slots=True)
class PrepareEngine:
    """Imports what engines import, and reads the checkpoints in `directories`. Uses no device, and so no GPU memory."""

    directories: tuple[Path, ...]

    def __call__(self) -> None:
        with importing("torch"):
            from voxcpm_grpc.engine.load import prepare_all

            prepare_all()
        for directory in self.directories:
            with contextlib.suppress(OSError):  # the engine reports it
                checkpoint.fingerprint(directory)


def stand_by(orders: Connection, prepare: Callable[[], object], log: LogOptions) -> None:
    """The main function of the process: run the order that arrives, and end without one if the other end closes.

    An empty message reports the end of `prepare`.
    """
    name = multiprocessing.current_process().name
    logs.set_up(log, name)
    set_title(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes
    threading.Thread(target=_prepare, args=(orders, prepare), name="preparation", daemon=True).start()
    try:
        order: Order = orders.recv()
    except (EOFError, ConnectionError):
        os._exit(0)  # the preparation may be in the middle of an import
    orders.close()
    multiprocessing.current_process().name = order.name
    order.main(order.addresses)


def _prepare(orders: Connection, prepare: Callable[[], object]) -> None:
    if sys.platform == "linux":  # a thread has a priority of its own there; the engine needs the normal one
        priority.lower(threading.get_native_id())
    try:
        prepare()
        with contextlib.suppress(ConnectionError):  # the other end has just been closed
            orders.send_bytes(b"")
    except Exception:
        logger.exception("the standby process cannot be prepared")
        os._exit(1)
