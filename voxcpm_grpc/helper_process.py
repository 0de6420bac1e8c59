"""The processes that this one starts, and one that helps it: it answers what its parent sends through a pipe."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

READY = b"ready"  # the first message of a process that can help


class UninterruptedProcess(SpawnProcess):
    """A process that its parent ends: Ctrl-C, which a terminal sends to all processes, never interrupts it."""

    def start(self) -> None:
        resource_tracker.ensure_running()  # otherwise `start` starts it, which lets signals through
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the process begins with it
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def run(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        super().run()


class _Context(SpawnContext):
    Process = UninterruptedProcess


SPAWN = _Context()  # CUDA and the threads of gRPC do not survive a fork


def set_title(name: str) -> None:
    """Set the name of this process in the output of `ps` and `top`."""
    with suppress(ImportError):  # the package is optional
        from setproctitle import setproctitle

        setproctitle(f"voxcpm-grpc {name}")


class HelperProcess:
    """Starts when it is needed, also after its end. For one thread at a time, except `pid` and `close`.

    target: runs in the process, with its end of the pipe and then `args`; it sends READY, and ends when the pipe does
    name: of the process

    `process` and `pipe` are those of the latest start.
    """

    def __init__(self, target: Callable[..., None], *args: object, name: str) -> None:
        self.process: Any = None
        self.pipe: Any = None
        self.closed = False  # its end is no error
        self._target, self._args, self._name = target, args, name

    @property
    def pid(self) -> int | None:
        """The process id; None before the first start."""
        return None if self.process is None else self.process.pid

    def start(self, seconds: float) -> bytes:
        """Start the process unless it runs. Returns its first message: READY, or what it sends instead.

        Raises TimeoutError if none comes within `seconds`, EOFError or OSError if the process ends, and after `close`.
        """
        if self.process is not None and self.process.is_alive():
            return READY
        self.pipe, theirs = SPAWN.Pipe()
        process = SPAWN.Process(target=self._target, args=(theirs, *self._args), name=self._name, daemon=True)
        process.start()
        self.process = process  # `close` in another thread needs a running process, so this follows the start
        theirs.close()  # only the child holds it, so that the pipe ends when the child dies
        if self.closed:  # `close` has ended no process, because there was none yet
            raise EOFError
        if not self.pipe.poll(seconds):
            raise TimeoutError
        return self.pipe.recv_bytes()

    def stop(self) -> None:
        """Kill the process, if there is one, and wait for its end."""
        if self.process is not None:
            self.process.kill()
            self.process.join()

    def close(self) -> None:
        """Stop the process for good. Called again when no thread starts it any more, it ends one that just started."""
        self.closed = True
        self.stop()
