"""Processes that were forked from one that was using gRPC.

The asynchronous API of gRPC has a thread that polls as long as there is a channel. A child that is forked meanwhile has
no such thread: its calls wait forever, or crash. The clients of such a child therefore refuse to be used.

The threads of gRPC's core end a moment after the last channel. One of them holds the lock that guards the start of gRPC
meanwhile; in a child that is forked at that moment the lock stays locked, so that its first channel waits forever. A
fork therefore waits until the threads have ended.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from voxcpm_client.errors import UnusableClient

POLLER = "_poll_wrapper"  # the name of that thread contains it
SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"
OFF = ("0", "n", "no", "f", "false")  # no part of gRPC survives a fork with these values of SUPPORT
CORE_THREADS = ("grpc", "event_engine", "lifeguard")  # their names begin so
MOST_LISTINGS = 100  # of threads, in a process where they end all the time
TASKS = Path("/proc/self/task")  # it lists the threads of this process; only Linux has it
CLOSE_SECONDS = 2.0  # the threads of closed channels end within this time, also on a host under load
UNSEEN_SECONDS = 1.0  # seconds on a system that does not tell whether they have ended
LOOK_SECONDS = 0.002
MESSAGE = (
    "gRPC does not work in this process, because it was forked from one that was using gRPC: close the clients before "
    "the fork, make the first call after it, or start processes with spawn"
)


class _State:
    """The gRPC of this process.

    process: its id
    usable: False if this process was forked while gRPC was in use
    used: True if gRPC is in use, at the begin of a fork
    opened: True if a channel was opened since a fork last waited for the end of threads
    channels: the open ones
    inherited: those of the parent, whose destructors would wait for the thread that is not there
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self.usable = True
        self.used = False
        self.opened = False
        self.channels: weakref.WeakSet[Any] = weakref.WeakSet()
        self.inherited: list[Any] = []


_state = _State()


def register(channel: Any) -> None:
    """Keep a channel from being destroyed in children, as long as it is open here."""
    _state.channels.add(channel)
    _state.opened = True


def check() -> None:
    """Raise UnusableClient in a process in which gRPC does not work, because it was forked."""
    notice()
    if not _state.usable:
        raise UnusableClient(MESSAGE)


def _before() -> None:
    if _state.opened and not _state.channels:
        _state.opened = False  # threads that are left after this wait are not those of a client
        _wait_for_threads()
    _state.used = _polls() or (os.environ.get(SUPPORT, "").lower() in OFF and _core_runs())


def _wait_for_threads() -> None:
    """Wait until the threads of closed channels have ended."""
    if _polls():
        gc.collect()  # a call that was cancelled keeps its channel until then
    seen = TASKS.is_dir()
    deadline = time.monotonic() + (CLOSE_SECONDS if seen else UNSEEN_SECONDS)
    while (not seen or _polls() or _core_runs()) and not _state.channels and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)


def _polls() -> bool:
    """True if a thread of gRPC runs without which no channel of the asynchronous API works."""
    return any(POLLER in thread.name for thread in threading.enumerate())


def _core_runs() -> bool:
    """True if gRPC's core has threads, as with channels of other libraries. Only Linux tells."""
    with suppress(OSError):
        for _ in range(MOST_LISTINGS):
            names, whole = _task_names()
            if any(name.startswith(CORE_THREADS) for name in names):
                return True
            if whole:
                break
    return False


def _task_names() -> tuple[list[str], bool]:
    """The names of the threads; False if one has ended meanwhile: it may have started another one after the listing.

    Raises OSError on a system that does not list them.
    """
    names, whole = list[str](), True
    for task in [*TASKS.iterdir()]:
        try:
            names.append((task / "comm").read_text("utf-8"))
        except (FileNotFoundError, ProcessLookupError):
            whole = False
    return names, whole


def notice() -> None:
    """Take note of a fork, in the child. Each use of a client calls this: uWSGI forks without Python's hooks."""
    if _state.process == os.getpid():
        return
    _state.usable = _state.usable and not (_state.used or _state.channels)
    _state.inherited += list(_state.channels)
    _state.process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_child=notice)
