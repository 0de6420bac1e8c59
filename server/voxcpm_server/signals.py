"""SIGTERM and SIGINT as the process of a server handles them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Coroutine
from typing import Any, NoReturn

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.ipc.process import kill_tree

ABORT_SECONDS = 0.3  # seconds for a start to end what it has begun


class Signals:
    """Handles SIGTERM and SIGINT from its construction on.

    A signal before `wait` cancels the current task, so that a start is aborted, and ends the process after
    ABORT_SECONDS: threads of a start may wait for a file, a network or a compiler. The first signal during `wait` makes
    `wait` return. Every further signal cancels the task, so that the server does not wait for open streams.
    """

    def __init__(self) -> None:
        self._main = asyncio.current_task()
        self._stop = asyncio.Event()
        self._first: signal.Signals | None = None
        self._waiting = False
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)
            signal.signal(number, self._limit_abort)  # the handler runs also while the event loop is blocked

    async def wait(self, no_engine_left: Coroutine[Any, Any, object]) -> signal.Signals:
        """Wait for a signal and return it. Raises StartupError if `no_engine_left` returns first."""
        self._waiting = True
        if self._first is None:  # no start has been aborted; a signal that came just now only ends the wait
            signal.setitimer(signal.ITIMER_REAL, 0)
        watch, stop = asyncio.create_task(no_engine_left), asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait((watch, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            stop.cancel()
        if self._first is None:
            raise StartupError("no engine is left and none could be restarted; the log has the reason")
        return self._first

    def _limit_abort(self, *_: object) -> None:
        if not self._waiting:
            signal.signal(signal.SIGALRM, end_now)
            signal.setitimer(signal.ITIMER_REAL, ABORT_SECONDS)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set() or not self._waiting:
            assert self._main is not None
            self._main.cancel()
        self._first = self._first or number
        self._stop.set()


def is_aborted() -> bool:
    """True if a signal has aborted the start, whose errors are then of no interest."""
    return signal.getitimer(signal.ITIMER_REAL)[0] > 0


def end_now(*_: object) -> NoReturn:
    """End this process, with status 0, and all that it has started, without waiting for anything."""
    for child in multiprocessing.active_children():
        kill_tree(child)
    os._exit(0)
