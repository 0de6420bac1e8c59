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
from voxcpm_grpc.engine.desk import EngineLike
from voxcpm_grpc.engine.messages import Command, Ready, Report, StartFailed, Stop
from voxcpm_grpc.engine.worker import Addresses
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.request import ModelInfo

logger = logging.getLogger(__name__)

SPAWN = multiprocessing.get_context("spawn")  # a forked copy of CUDA or of gRPC's threads does not work

START_SECONDS = 900.0  # reading tens of gigabytes from a cold disk takes minutes
STOP_SECONDS = 5.0
LAST_WORDS_SECONDS = 0.05  # silence after which an ended process has nothing more under way


class Handle(Protocol):
    """One life of one engine, wherever it runs: started once, used until it is gone, then closed.

    Belongs to one event loop; nothing here blocks it. An engine that was lost is followed by a new handle of the same
    place, made by the place's `Launch`; see `supervisor`.
    """

    name: str

    async def start(self) -> ModelInfo:
        """Bring the engine up, warmed up. Raises StartupError with its own words if it cannot."""
        ...

    def post(self, command: Command) -> None:
        """Send a command; never waits. A command to an engine that is gone goes nowhere."""
        ...

    def reports(self) -> AsyncGenerator[list[Report]]:
        """What the engine says, a step at a time, in order, with a Beat every `messages.BEAT_SECONDS` between.

        Ends when the engine is gone. Read by one reader, from start to end.
        """
        ...

    async def close(self, *, force: bool = False) -> None:
        """Stop the engine: it may finish its step, unless `force`, and is killed if it does not stop itself.

        Returns when it is gone and its device free. Safe at any time and more than once.
        """
        ...


Launch = Callable[[], Handle]
"""Makes the next handle of a place, not yet started. Every call makes a new one."""


class ProcessHandle:
    """An engine in a spawned process of this host.

    `make_engine` is called there and must be picklable. Messages travel over a Unix socket in a private directory, or
    over the loopback interface where that cannot be; beats have a socket of their own.
    """

    def __init__(
        self,
        make_engine: Callable[[], EngineLike],
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
        self._beats: zmq.asyncio.Socket = self._context.socket(zmq.PULL)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> ModelInfo:
        with _addresses(self._socket, self._beats) as addresses:
            self._spawning = asyncio.create_task(self._spawn(Addresses(*addresses)))
            process = await asyncio.shield(self._spawning)  # close() needs its end, cancelled or not
            try:
                async with asyncio.timeout(self._start_seconds):
                    info = await self._ready_info()
            except TimeoutError:
                raise StartupError(f"{self.name} was not ready after {self._start_seconds:g} seconds") from None
        if info is None:
            raise StartupError(
                f"the process of {self.name} ended with status {process.exitcode} before it was ready; "
                "its log may say why"
            )
        self._ready = True
        return info

    async def _ready_info(self) -> ModelInfo | None:
        """What a ready engine says of itself, once both sockets have found their peer; None if its process ended."""
        info, beaten = None, False
        async with contextlib.aclosing(self.reports()) as batches:
            async for batch in batches:
                match batch:
                    case [messages.Beat()]:
                        beaten = True
                    case [Ready(info)]:
                        pass
                    case [StartFailed(message)]:
                        raise StartupError(message)
                if info and beaten:
                    return info
        return None

    def post(self, command: Command) -> None:
        if not self._exited.is_set():
            self._socket.send(messages.encode_command(command), copy=False)

    async def reports(self) -> AsyncGenerator[list[Report]]:
        exited = asyncio.ensure_future(self._exited.wait())
        waiting = {socket: asyncio.ensure_future(socket.recv(copy=False)) for socket in (self._socket, self._beats)}
        try:
            while True:
                await asyncio.wait((*waiting.values(), exited), return_when=asyncio.FIRST_COMPLETED)
                if exited.done():  # the engine is gone, but what it said last may still be under way
                    await asyncio.wait((waiting[self._socket],), timeout=LAST_WORDS_SECONDS)
                    if not waiting[self._socket].done():
                        return
                for socket, received in waiting.items():
                    if received.cancelled():  # by close
                        return
                    if received.done():
                        yield messages.decode_reports(received.result().buffer)
                        waiting[socket] = asyncio.ensure_future(socket.recv(copy=False))
        finally:
            for future in (exited, *waiting.values()):
                future.cancel()

    async def close(self, *, force: bool = False) -> None:
        self._closing = True
        if self._spawning:
            with contextlib.suppress(Exception):  # start() has told
                await self._end(await self._spawning, force)
        self._socket.close()
        self._beats.close()
        self._context.term()

    async def _spawn(self, addresses: Addresses) -> SpawnProcess:
        arguments = (addresses, self._make_engine, self._log_level)
        self._process = process = SPAWN.Process(target=worker.main, args=arguments, name=self.name, daemon=True)
        await asyncio.to_thread(process.start)  # waits for a fork and fills a pipe
        asyncio.get_running_loop().add_reader(process.sentinel, self._on_exit, process)
        return process

    async def _end(self, process: SpawnProcess, force: bool) -> None:
        if self._ready and not force:  # before, nobody reads the mail
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
def _addresses(*sockets: zmq.asyncio.Socket) -> Iterator[list[str]]:
    """An address for the one peer of each socket. Its file goes with the context: nobody else can connect later."""
    directory = tempfile.mkdtemp(prefix="voxcpm-")  # made with mode 0700
    try:
        yield [_bind(socket, f"ipc://{directory}/{number}") for number, socket in enumerate(sockets)]
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _bind(socket: zmq.asyncio.Socket, address: str) -> str:
    try:
        socket.bind(address)
        return address
    except zmq.ZMQError:  # no Unix sockets here, or the path is longer than they allow
        return f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"
