"""Child processes: the parent's handle of one, and the setup that every child runs first."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import signal
import threading
import weakref
from collections.abc import AsyncGenerator, Callable
from functools import partial
from multiprocessing import connection
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess

import zmq
import zmq.asyncio

from voxcpm_grpc import logs, progress
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.helper_process import SPAWN, set_title
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc.messages import Command, Ready, Report, StartFailed, Starting, Stop
from voxcpm_grpc.ipc.socket_folder import SocketFolder
from voxcpm_grpc.ipc.sockets import Addresses, bind, received, release, unbounded
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.request import ModelInfo

logger = logging.getLogger(__name__)

KILL_SECONDS = 10.0  # a killed process ends in this time, unless a driver blocks it


class ChildProcess:
    """A process of this host that runs `main`.

    `main` receives the addresses to connect to; it and its arguments must be picklable. The process sends heartbeats,
    then Ready or StartFailed, and ends when it receives Stop. Its sockets are Unix sockets in a private folder, or use
    the loopback interface where that is impossible. A `daemon` cannot have children of multiprocessing. Whatever the
    process has started ends with it. `start` reports the progress of the process; see `voxcpm_grpc.progress`.
    """

    def __init__(
        self,
        main: Callable[[Addresses], None],
        *,
        name: str,
        start_seconds: float,
        stop_seconds: float,
        daemon: bool = True,
        unwind_seconds: float = 0.0,
    ) -> None:
        """unwind_seconds: after SIGTERM, for a process that is not ready to end its own children; else it is killed"""
        context = zmq.asyncio.Context()
        self.name = name
        self.address = ""  # the process listens here itself, once it is ready
        self._commands: zmq.asyncio.Socket = unbounded(context.socket(zmq.PUSH))
        self._reports: zmq.asyncio.Socket = unbounded(context.socket(zmq.PULL))
        self._ended = asyncio.Event()
        self._main = partial(_leading_group, main)
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds
        self._daemon = daemon
        self._unwind_seconds = unwind_seconds
        self._stop = Stop()
        self._pid: int | None = None
        self._status: int | None = None
        self._spawning: asyncio.Task[SpawnProcess] | None = None
        self._ready = self._closing = False
        self._running: list[SpawnProcess] = []  # one process at most
        self._folders: list[SocketFolder] = []  # one folder at most
        # The garbage collector ends a context before its sockets, and so would block on a handle that was not closed.
        self._release = weakref.finalize(
            self, _release, self._running, self._folders, context, self._commands, self._reports
        )

    @property
    def pid(self) -> int | None:
        return self._pid

    async def start(self) -> ModelInfo:
        """Start the process, and wait until it is ready. Raises StartupError if that fails."""
        self._spawning = asyncio.create_task(self._spawn(self._listen()))
        await asyncio.shield(self._spawning)  # close() needs the process, even if this is cancelled
        try:
            async with asyncio.timeout(self._start_seconds):
                ready = await self._wait_until_ready()
        except TimeoutError:
            raise StartupError(f"{self.name} was not ready after {self._start_seconds:g} seconds") from None
        self._ready, self.address = True, ready.address
        return ready.info

    def post(self, command: Command) -> None:
        """Send a command; never waits. A command to a process that has ended is dropped."""
        if not self._ended.is_set() and not self._commands.closed:
            self._commands.send(encoding.encode(command), copy=False)

    def reports(self) -> AsyncGenerator[list[Report]]:
        """Yield the reports of each message, in order, and a Heartbeat every `messages.HEARTBEAT_SECONDS`.

        Ends after the last message of a process that has ended. Only one reader may iterate at a time.
        """
        return received(self._reports, self._ended)

    def _listen(self) -> Addresses:
        """Listen at addresses in a new folder, which exists until the end of the process."""
        self._folders.append(folder := SocketFolder())
        commands, reports, own = (f"ipc://{folder.path}/{name}" for name in ("commands", "reports", "own"))
        return Addresses(bind(self._commands, commands), bind(self._reports, reports), own)

    async def _wait_until_ready(self) -> Ready:
        on_progress = progress.forwarder(self.name)
        async with contextlib.aclosing(self.reports()) as received:
            async for reports in received:
                match reports:
                    case [Ready() as ready]:
                        return ready
                    case [Starting(step)]:
                        on_progress(step)
                    case [StartFailed(message)]:
                        raise StartupError(message)
        raise StartupError(
            f"the process of {self.name} ended with status {self._status} before it was ready; its log may say why"
        )

    async def close(self, *, force: bool = False) -> None:
        """Stop the process. It may finish its work unless `force` is true, and is killed if it does not stop.

        Returns when it has ended. May be called at any time and more than once.
        """
        self._closing = True
        if self._spawning:
            with contextlib.suppress(Exception):  # start() has raised it
                await self._end(await asyncio.shield(self._spawning), force)
        self._release()

    async def _spawn(self, addresses: Addresses) -> SpawnProcess:
        process = await self._started(addresses)
        self._pid = process.pid
        self._running.append(process)
        asyncio.get_running_loop().add_reader(process.sentinel, self._on_exit, process)
        return process

    async def _started(self, addresses: Addresses) -> SpawnProcess:
        """A process that runs `main`."""
        process = SPAWN.Process(target=self._main, args=(addresses,), name=self.name, daemon=self._daemon)
        await asyncio.to_thread(process.start)  # the start blocks while it forks and fills a pipe
        return process

    async def _end(self, process: SpawnProcess, force: bool) -> None:
        if self._ready and not force:  # a process that is not ready does not read messages
            self.post(self._stop)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._stop_seconds):
                    await self._ended.wait()
        elif self._unwind_seconds and not self._ready and not self._ended.is_set():
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._unwind_seconds):
                    await self._ended.wait()
        if not self._ended.is_set():
            process.kill()
            try:
                async with asyncio.timeout(KILL_SECONDS):
                    await self._ended.wait()
            except TimeoutError:
                logger.error("%s, process %s, was killed and does not end; it is left behind", self.name, self.pid)

    def _on_exit(self, process: SpawnProcess) -> None:
        asyncio.get_running_loop().remove_reader(process.sentinel)
        _kill_group(process)
        process.join()  # `join` does not block: the process has ended, and this collects its status
        self._status = process.exitcode
        self._running.remove(process)
        process.close()  # this closes its pipes, too
        self._ended.set()
        if self._ready and not self._closing:
            logger.error("%s ended with status %s", self.name, self._status)


def kill_tree(process: BaseProcess) -> None:
    """Kill a child process and, if it is that of a ChildProcess, all that it has started."""
    process.kill()
    _kill_group(process)


def _kill_group(process: BaseProcess) -> None:
    """Kill what is left of the group of processes that a child leads, if it leads one. It must not be joined yet."""
    assert process.pid
    with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS denies it where only a zombie is left
        os.killpg(process.pid, signal.SIGKILL)


def _release(
    running: list[SpawnProcess], folders: list[SocketFolder], context: zmq.Context, *sockets: zmq.Socket
) -> None:
    """Free what a handle holds, and kill a process that was not closed or that a driver blocks."""
    for process in running:
        kill_tree(process)
    release(context, *sockets)
    for folder in folders:
        folder.close()


# ---- in the child


def _leading_group(main: Callable[[Addresses], None], addresses: Addresses) -> None:
    """Run `main` in a group of processes of its own, with which the parent ends all that this process starts."""
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # `stty tostop` would stop it at a line of its log
    main(addresses)


def set_up(log: LogOptions) -> None:
    """Set up a child process: its title, its log, and its end when the parent ends."""
    name = multiprocessing.current_process().name
    logs.set_up(log, name)
    set_title(name)
    _exit_with_parent()


def _exit_with_parent() -> None:
    """Exit as soon as the parent has ended, also in the middle of loading or of a step."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait_and_exit() -> None:
        connection.wait([parent.sentinel])
        logger.critical("the parent process has ended; this process exits")
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait_and_exit, name="exit-with-parent", daemon=True).start()
