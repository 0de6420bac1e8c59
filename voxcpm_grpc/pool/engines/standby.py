"""Keeps a standby process, which becomes the next engine of this host; see `worker.standby`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Literal

from voxcpm_grpc import logs
from voxcpm_grpc.aio.tasks import cancel_and_wait, keep_running
from voxcpm_grpc.ipc.sockets import Addresses
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.worker.standby import NAME, PrepareEngine, StandbyProcess

logger = logging.getLogger(__name__)

Kept = Literal["auto", "on", "off"]
STATUS_SECONDS = 1.0  # seconds for a process that ends by itself
RETRY_SECONDS = 30.0  # seconds from the end of a process that became no engine to the next one


class Standby:
    """One standby process for all engines of a host, kept from the time when the first of them is ready.

    It has no device and no memory on one. `take` gives it to an engine that starts. The next one is prepared when no
    engine starts any more. A server may have started one before, for its first engine. Belongs to one event loop.
    """

    def __init__(
        self,
        prepare: Callable[[], object],
        kept: Kept = "auto",
        *,
        log: LogOptions = logs.DEFAULT,
        first: StandbyProcess | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """`prepare` runs in the process and must be picklable; for `kept` see the setting `supervision.standby`.

        first: a process for the first engine, whatever `kept` says; it belongs to this object
        """
        self._prepare = prepare
        self._kept = kept
        self._log = log
        self._first = first
        self._retry_seconds = retry_seconds
        self._starts = 0  # so many engines start now
        self._none_starts = asyncio.Event()
        self._none_starts.set()
        self._prepared: StandbyProcess | None = None
        self._wake = asyncio.Event()  # it ends the wait of `_readable`
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @classmethod
    def of_engines(
        cls, directories: Iterable[Path], kept: Kept, *, log: LogOptions, first: StandbyProcess | None = None
    ) -> Standby:
        """A standby process for engines with the checkpoints in these directories."""
        return cls(PrepareEngine(tuple(dict.fromkeys(directories))), kept, log=log, first=first)

    @property
    def pid(self) -> int | None:
        """The process that waits; None while there is none, or it is not prepared."""
        return self._prepared.process.pid if self._prepared else None

    @contextlib.contextmanager
    def engine_starts(self) -> Iterator[None]:
        """The start of an engine, in which no process is prepared."""
        self._starts += 1
        self._none_starts.clear()
        try:
            yield
        finally:
            self._starts -= 1
            if not self._starts:
                self._none_starts.set()

    def keep(self, device: str) -> None:
        """Keep a process from now on, if an engine on this device calls for one."""
        wanted = self._kept == "on" or (self._kept == "auto" and device != "cpu")
        if wanted and self._task is None and not self._closed:
            self._task = keep_running(self._keep, "the standby process", retry_seconds=self._retry_seconds)

    def take(self, name: str, main: Callable[[Addresses], None], addresses: Addresses) -> SpawnProcess | None:
        """Let the process run `main(addresses)` under a name, and give it to the caller; None without one."""
        if (first := self._first) and first.become(name, main, addresses):
            first.close()
            self._first = None
            return first.process
        if (waiting := self._prepared) and waiting.become(name, main, addresses):
            self._prepared = None
            self._wake.set()
            logger.info("%s starts in the %s process, %s", name, NAME, waiting.process.pid)
            return waiting.process
        return None

    async def close(self) -> None:
        """End the process. May be called more than once."""
        self._closed = True
        if self._first:
            await asyncio.to_thread(self._first.close)
        await cancel_and_wait(self._task)

    async def _keep(self) -> None:
        while True:
            await self._none_starts.wait()
            if not await self._keep_one():
                await asyncio.sleep(self._retry_seconds)

    async def _keep_one(self) -> bool:
        """Prepare a process and wait until it is taken or has ended. Returns True if it was taken."""
        starting = asyncio.create_task(asyncio.to_thread(StandbyProcess, self._prepare, self._log))
        try:
            waiting = await asyncio.shield(starting)
            await self._readable(waiting.orders)
            waiting.orders.recv_bytes()  # the message says that it is prepared
            self._prepared = waiting
            logger.info("a %s process is prepared, %s", NAME, waiting.process.pid)
            await self._readable(waiting.orders)  # the pipe is readable at its end; `take` ends the wait, too
        except (EOFError, ConnectionError):
            pass
        finally:
            self._prepared = None
            await asyncio.wait([starting])
            taken = not starting.exception() and await asyncio.to_thread(self._released, starting.result())
        return taken

    async def _readable(self, connection: Connection) -> None:
        """Wait until a message has arrived, or the other end is closed."""
        loop, self._wake = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(connection.fileno(), self._wake.set)
        try:
            await self._wake.wait()
        finally:
            loop.remove_reader(connection.fileno())

    def _released(self, standby: StandbyProcess) -> bool:
        """Let go of a process. Returns True if an engine took it; else it ends. Blocks until it has ended."""
        if not (standby.taken or self._closed):
            standby.process.join(STATUS_SECONDS)
        status = standby.close()
        if not (standby.taken or self._closed):
            logger.warning("the %s process ended with status %s; another one follows", NAME, status)
        return standby.taken
