"""Where an engine lives, as its front sees it: a mailbox to write to, reports to read, and an end to notice."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from multiprocessing.context import SpawnProcess
from typing import Protocol

import zmq
import zmq.asyncio

from voxcpm_grpc.engine import messages, worker
from voxcpm_grpc.engine.messages import Command, Ready, Report, StartFailed, Stop
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.request import ModelInfo

logger = logging.getLogger(__name__)

SPAWN = multiprocessing.get_context("spawn")  # a forked copy of CUDA or of gRPC's threads does not work

START_SECONDS = 900.0  # reading tens of gigabytes from a cold disk takes minutes
STOP_SECONDS = 5.0
LAST_WORDS_SECONDS = 0.05  # silence after which an ended process has nothing more under way


class Handle(Protocol):
    """One engine, wherever it runs. Belongs to one event loop; nothing here blocks it."""

    name: str

    async def start(self) -> ModelInfo:
        """Bring the engine up. Raises StartupError with its own words if it cannot."""
        ...

    def post(self, command: Command) -> None:
        """Send a command; never waits. A command to an engine that is gone goes nowhere."""
        ...

    def reports(self) -> AsyncGenerator[list[Report]]:
        """What the engine says, a step at a time, in order. Ends when the engine is gone."""
        ...

    async def close(self) -> None:
        """Stop the engine, by force if it does not stop itself. Safe at any time and more than once."""
        ...


class ProcessHandle:
    """An engine in a spawned process of this host.

    `make_engine` is called there and must be picklable. Messages travel over a Unix socket in a private directory, or
    over the loopback interface where that cannot be.
    """

    def __init__(
        self,
        make_engine: Callable[[], worker.EngineLike],
        *,
        name: str = "engine",
        log_level: str = "info",
        start_seconds: float = START_SECONDS,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self.name = name
        self._make_engine = make_engine
        self._log_level = log_level
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds
        self._process: SpawnProcess | None = None
        self._spawning: asyncio.Task[SpawnProcess] | None = None
        self._ready = self._closing = False
        self._exited = asyncio.Event()
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)  # nothing is dropped; credit and the front's admission bound what waits
        self._socket.linger = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> ModelInfo:
        with _address(self._socket) as address:
            self._spawning = asyncio.create_task(self._spawn(address))
            process = await asyncio.shield(self._spawning)  # close() needs its end, cancelled or not
            try:
                async with asyncio.timeout(self._start_seconds), contextlib.aclosing(self.reports()) as reports:
                    first = await anext(reports, [])
            except TimeoutError:
                raise StartupError(f"{self.name} was not ready after {self._start_seconds:g} seconds") from None
        match first:
            case [Ready(info)]:
                self._ready = True
                return info
            case [StartFailed(message)]:
                raise StartupError(message)
        raise StartupError(
            f"the process of {self.name} ended with status {process.exitcode} before it was ready; its log may say why"
        )

    def post(self, command: Command) -> None:
        if not self._exited.is_set():
            self._socket.send(messages.encode_command(command), copy=False)

    async def reports(self) -> AsyncGenerator[list[Report]]:
        exited = asyncio.ensure_future(self._exited.wait())
        receive = asyncio.Future()
        try:
            while True:
                receive = asyncio.ensure_future(self._socket.recv(copy=False))
                await asyncio.wait((receive, exited), return_when=asyncio.FIRST_COMPLETED)
                if not receive.done():  # the engine is gone, but what it said last may still be under way
                    await asyncio.wait((receive,), timeout=LAST_WORDS_SECONDS)
                if not receive.done() or receive.cancelled():  # the latter by close
                    return
                yield messages.decode_reports(receive.result().buffer)
        finally:
            exited.cancel()
            receive.cancel()

    async def close(self) -> None:
        self._closing = True
        if self._spawning:
            with contextlib.suppress(Exception):  # start() has told
                await self._end(await self._spawning)
        self._socket.close()
        self._context.term()

    async def _spawn(self, address: str) -> SpawnProcess:
        arguments = (address, self._make_engine, self._log_level)
        self._process = process = SPAWN.Process(target=worker.main, args=arguments, name=self.name, daemon=True)
        await asyncio.to_thread(process.start)  # waits for a fork and fills a pipe
        asyncio.get_running_loop().add_reader(process.sentinel, self._on_exit, process)
        return process

    async def _end(self, process: SpawnProcess) -> None:
        if self._ready:  # before, nobody reads the mail
            self.post(Stop())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._stop_seconds):
                    await self._exited.wait()
        if not self._exited.is_set():
            process.kill()
            await self._exited.wait()

    def _on_exit(self, process: SpawnProcess) -> None:
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()  # it has ended: this only collects its status
        self._exited.set()
        if self._ready and not self._closing:
            logger.error("%s ended with status %s", self.name, process.exitcode)


@contextlib.contextmanager
def _address(socket: zmq.asyncio.Socket) -> Iterator[str]:
    """An address for the socket's one peer. Its file goes with the context: nobody else can connect later."""
    directory = tempfile.mkdtemp(prefix="voxcpm-")  # made with mode 0700
    try:
        try:
            address = f"ipc://{directory}/engine"
            socket.bind(address)
        except zmq.ZMQError:  # no Unix sockets here, or the path is longer than they allow
            address = f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
        yield address
    finally:
        shutil.rmtree(directory, ignore_errors=True)
