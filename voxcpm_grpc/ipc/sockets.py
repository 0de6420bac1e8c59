"""The ZeroMQ sockets of an engine, of its fronts, and between a process and its parent, all on one host."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import weakref
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from socket import socketpair
from typing import TypeVar

import zmq
import zmq.asyncio

from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc.messages import Command, Report

LAST_REPORTS_SECONDS = 0.05  # seconds to wait for each further message of a process that has ended
LINGER_MS = 1000  # milliseconds for the last reports to a process that still reads
OWNER = ""
"""The name of the process that started an engine. Fronts have names."""

S = TypeVar("S", bound=zmq.Socket)


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses between a process and its parent.

    commands, reports: where the parent listens; the process connects, and receives commands or sends reports
    own: where the process may listen itself
    """

    commands: str
    reports: str
    own: str


class EngineSocket:
    """The socket of an engine to which all fronts connect, and its connection to its owner.

    `address` is where the fronts connect. It ends with a key, without which no process of another user can use the
    engine over the loopback interface. For one thread, except `wake`.
    """

    def __init__(self, context: zmq.Context, addresses: Addresses) -> None:
        self._fronts: zmq.Socket[bytes] = unbounded(context.socket(zmq.ROUTER))
        self._commands: zmq.Socket[bytes] = unbounded(context.socket(zmq.PULL))
        self._reports: zmq.Socket[bytes] = unbounded(context.socket(zmq.PUSH))
        self._wakes, self._woken = socketpair()
        self._wakes.setblocking(False)
        self._woken.setblocking(False)
        self._poller = zmq.Poller()
        for source in (self._fronts, self._commands, self._woken):
            self._poller.register(source, zmq.POLLIN)
        self._commands.connect(addresses.commands)
        self._reports.connect(addresses.reports)
        self._key = secrets.token_hex(16).encode()
        self.address = f"{bind(self._fronts, addresses.own)}#{self._key.decode()}"

    def __enter__(self) -> EngineSocket:
        return self

    def __exit__(self, *_: object) -> None:
        for socket in (self._fronts, self._commands, self._reports):
            socket.close(LINGER_MS)
        self._wakes.close()
        self._woken.close()

    def wake(self) -> None:
        """End the wait of `inbox`, now or the next time. For other threads."""
        with contextlib.suppress(OSError):  # the sockets are closed, or enough wakes are pending
            self._wakes.send(b"\0")

    @contextlib.contextmanager
    def woken_by_signals(self) -> Iterator[None]:
        """End a wait of `inbox` at a signal in this block. For the main thread.

        Without this, a signal just before the wait, or one that another thread receives, would not end it.
        """
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)

    def inbox(self, *, wait: bool) -> Iterator[tuple[str, memoryview]]:
        """Yield each message that has arrived, with the name of its sender; those of the owner come first.

        `wait` blocks until there is one, or until `wake` is called.
        """
        if wait:
            self._poller.poll()
            with contextlib.suppress(BlockingIOError):
                self._woken.recv(4096)
        with contextlib.suppress(zmq.Again):
            while True:
                yield OWNER, self._commands.recv(zmq.DONTWAIT, copy=False).buffer
        with contextlib.suppress(zmq.Again):
            while True:
                sender, *parts = self._fronts.recv_multipart(zmq.DONTWAIT, copy=False)
                if len(parts) == 1 and sender.bytes.startswith(self._key):
                    yield sender.bytes.removeprefix(self._key).decode(), parts[0].buffer

    def send(self, receiver: str, reports: list[Report]) -> None:
        """Send reports to a front, or to the owner; never waits. Those to a front that is gone are dropped."""
        data = encoding.encode(reports)
        with contextlib.suppress(zmq.Again):
            if receiver == OWNER:
                self._reports.send(data, zmq.DONTWAIT)
            else:
                self._fronts.send(self._key + receiver.encode(), zmq.DONTWAIT | zmq.SNDMORE)
                self._fronts.send(data, zmq.DONTWAIT, copy=False)


class FrontSocket:
    """The connection of a front to an engine, which knows it by the name `front`, from its first command on.

    `end` reports that the engine has ended.
    """

    def __init__(self, address: str, front: str) -> None:
        context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket = unbounded(context.socket(zmq.DEALER))
        where, _, key = address.rpartition("#")
        self._socket.identity = (key + front).encode()
        self._socket.connect(where)
        self._ended = asyncio.Event()
        # The garbage collector ends a context before its sockets, and so would block on one that is not closed.
        self._release = weakref.finalize(self, release, context, self._socket)

    def post(self, command: Command) -> None:
        """Send a command; never waits. A command to an engine that has ended is dropped."""
        if not self._ended.is_set() and not self._socket.closed:
            self._socket.send(encoding.encode(command), copy=False)

    def reports(self) -> AsyncGenerator[list[Report]]:
        """Yield the reports of each step, in order. Ends after the last ones of an engine that has ended."""
        return received(self._socket, self._ended)

    def end(self) -> None:
        """Send nothing any more, and end `reports` after the last ones."""
        self._ended.set()

    def close(self) -> None:
        self._release()


async def received(socket: zmq.asyncio.Socket, ended: asyncio.Event) -> AsyncGenerator[list[Report]]:
    """Yield the reports of each message at a socket. Ends after the last message of a process that has ended."""
    end, read = asyncio.ensure_future(ended.wait()), asyncio.ensure_future(socket.recv(copy=False))
    try:
        while True:
            await asyncio.wait((read, end), return_when=asyncio.FIRST_COMPLETED)
            if end.done():  # its last messages may still be on the way
                await asyncio.wait((read,), timeout=LAST_REPORTS_SECONDS)
            if not read.done() or read.cancelled():  # the socket was closed
                return
            yield encoding.decode_reports(read.result().buffer)
            read = asyncio.ensure_future(socket.recv(copy=False))
    finally:
        end.cancel()
        read.cancel()


def unbounded(socket: S) -> S:
    """The socket without a limit of its queues: no message is dropped; windows and admission bound what waits."""
    socket.set_hwm(0)
    socket.linger = 0
    return socket


def bind(socket: zmq.Socket, address: str) -> str:
    """Listen at an address, or on a port of the loopback interface if that is impossible; returns the address."""
    try:
        socket.bind(address)
        return address
    except zmq.ZMQError:  # the system has no Unix sockets, or the path is too long for one
        return f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"


def release(context: zmq.Context, *sockets: zmq.Socket) -> None:
    """End a context with its sockets."""
    for socket in sockets:
        socket.close(linger=0)
    context.term()
