"""A spawned process and the two sockets to it, as its parent sees them, and what every such process begins with."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import os
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.context import SpawnProcess

import zmq
import zmq.asyncio

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.ipc import messages
from voxcpm_grpc.ipc.messages import Command, Ready, Report, StartFailed, Stop
from voxcpm_grpc.ipc.socket_folder import SocketFolder
from voxcpm_grpc.request import ModelInfo

logger = logging.getLogger(__name__)

SPAWN = multiprocessing.get_context("spawn")  # a forked copy of CUDA or of gRPC's threads does not work
KILLED_SECONDS = 10.0  # in which a killed process is gone, unless a driver holds it
LAST_WORDS_SECONDS = 0.05  # silence after which an ended process has nothing more under way


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the parent listens: for letters, and for the beats beside them."""

    letters: str
    beats: str


class ChildProcess:
    """A `handles.Handle` of what `main` does in a spawned process of this host.

    `main` gets the addresses to connect to; it and its arguments must be picklable. It sends beats, then Ready or
    StartFailed, and obeys Stop. Messages travel over a Unix socket in a private directory, or over the loopback
    interface where that cannot be; beats have a socket of their own. A `daemon` can have no children.
    """

    def __init__(
        self,
        main: Callable[[Addresses], None],
        *,
        name: str,
        start_seconds: float,
        stop_seconds: float,
        daemon: bool = True,
    ) -> None:
        self.name = name
        self._main = main
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds
        self._daemon = daemon
        self._pid: int | None = None
        self._status: int | None = None
        self._spawning: asyncio.Task[SpawnProcess] | None = None
        self._ready = self._closing = False
        self._exited = asyncio.Event()
        self._context = zmq.asyncio.Context()
        self._letters = mailbox(self._context)
        self._beats: zmq.asyncio.Socket = self._context.socket(zmq.PULL)
        self._living: list[SpawnProcess] = []  # at most one
        # Whoever forgets to close must not hang in the garbage collector, which ends a context before its sockets.
        self._release = weakref.finalize(self, _release, self._context, (self._letters, self._beats), self._living)

    @property
    def pid(self) -> int | None:
        return self._pid

    async def start(self) -> ModelInfo:
        with listening(self._letters, self._beats) as addresses:
            self._spawning = asyncio.create_task(self._spawn(Addresses(*addresses)))
            await asyncio.shield(self._spawning)  # close() needs its end, cancelled or not
            try:
                async with asyncio.timeout(self._start_seconds):
                    info = await self._ready_info()
            except TimeoutError:
                raise StartupError(f"{self.name} was not ready after {self._start_seconds:g} seconds") from None
        if info is None:
            raise StartupError(
                f"the process of {self.name} ended with status {self._status} before it was ready; its log may say why"
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
            self._letters.send(messages.encode_command(command), copy=False)

    async def reports(self) -> AsyncGenerator[list[Report]]:
        async with contextlib.aclosing(received(self._exited, self._letters, self._beats)) as batches:
            async for reports in batches:
                yield reports

    async def close(self, *, force: bool = False) -> None:
        self._closing = True
        if self._spawning:
            with contextlib.suppress(Exception):  # start() has told
                await self._end(await asyncio.shield(self._spawning), force)
        self._release()

    async def _spawn(self, addresses: Addresses) -> SpawnProcess:
        process = SPAWN.Process(target=self._main, args=(addresses,), name=self.name, daemon=self._daemon)
        await asyncio.to_thread(process.start)  # waits for a fork and fills a pipe
        self._pid = process.pid
        self._living.append(process)
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
            try:
                async with asyncio.timeout(KILLED_SECONDS):
                    await self._exited.wait()
            except TimeoutError:
                logger.error(
                    "%s, process %s, does not end though it was killed; it is left behind", self.name, self.pid
                )

    def _on_exit(self, process: SpawnProcess) -> None:
        asyncio.get_running_loop().remove_reader(process.sentinel)
        process.join()  # it has ended: this only collects its status
        self._status = process.exitcode
        self._living.remove(process)
        process.close()  # and its pipes
        self._exited.set()
        if self._ready and not self._closing:
            logger.error("%s ended with status %s", self.name, self._status)


def _release(context: zmq.asyncio.Context, sockets: Iterable[zmq.asyncio.Socket], living: list[SpawnProcess]) -> None:
    """What a handle leaves behind: a process only if it was forgotten, or if a driver holds it."""
    for process in living:
        process.kill()
    for socket in sockets:
        socket.close(linger=0)
    context.term()


async def received(gone: asyncio.Event, letters: zmq.asyncio.Socket, *more: zmq.asyncio.Socket) -> AsyncGenerator:
    """Batches of reports from all these sockets; ends when the sender is `gone` and its last letter was read."""
    over = asyncio.ensure_future(gone.wait())
    waiting = {socket: asyncio.ensure_future(socket.recv(copy=False)) for socket in (letters, *more)}
    try:
        while True:
            await asyncio.wait((*waiting.values(), over), return_when=asyncio.FIRST_COMPLETED)
            if over.done():  # but what it said last may still be under way
                await asyncio.wait((waiting[letters],), timeout=LAST_WORDS_SECONDS)
                if not waiting[letters].done():
                    return
            for socket, letter in waiting.items():
                if letter.cancelled():  # the socket was closed
                    return
                if letter.done():
                    yield messages.decode_reports(letter.result().buffer)
                    waiting[socket] = asyncio.ensure_future(socket.recv(copy=False))
    finally:
        for future in (over, *waiting.values()):
            future.cancel()


@contextlib.contextmanager
def listening(*sockets: zmq.asyncio.Socket) -> Iterator[list[str]]:
    """An address for the one peer of each socket. Its file goes with the context: nobody else can connect later."""
    folder = SocketFolder()
    try:
        yield [bind(socket, f"ipc://{folder.path}/{number}") for number, socket in enumerate(sockets)]
    finally:
        folder.close()


def bind(socket: zmq.asyncio.Socket, address: str) -> str:
    try:
        socket.bind(address)
        return address
    except zmq.ZMQError:  # no Unix sockets here, or the path is longer than they allow
        return f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"


def mailbox(context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
    """A socket for letters, not yet bound."""
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)  # nothing is dropped; credit and the front's admission bound what waits
    socket.linger = 0
    return socket


# ---- in the process


def begin(log_level: str) -> None:
    """The first thing that such a process does: a title, a log, and an end when its parent ends."""
    name = multiprocessing.current_process().name
    logging.basicConfig(
        level=log_level.upper(),
        stream=sys.stderr,
        format=f"%(asctime)s %(levelname)s {name} %(name)s: %(message)s",
    )
    take_title(name)
    _follow_parent()


def take_title(name: str) -> None:
    """What `ps` and `top` show."""
    with contextlib.suppress(ImportError):  # a comfort that a bare machine may lack
        from setproctitle import setproctitle

        setproctitle(f"voxcpm-grpc {name}")


def _follow_parent() -> None:
    """End this process as soon as its parent has ended, whatever it is doing: loading, stepping or waiting."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def follow() -> None:
        connection.wait([parent.sentinel])
        logger.critical("the parent process is gone; this one ends")
        os._exit(1)

    threading.Thread(target=follow, name="follow-parent", daemon=True).start()
