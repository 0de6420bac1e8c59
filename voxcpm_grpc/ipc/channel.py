"""ZeroMQ sockets between processes of one host, as the process that listens uses them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator

import zmq
import zmq.asyncio

from voxcpm_grpc.ipc import messages
from voxcpm_grpc.ipc.messages import Command, Report
from voxcpm_grpc.ipc.socket_folder import SocketFolder

LAST_REPORTS_SECONDS = 0.05  # the wait for each further message of a process that has ended


class Channel:
    """The listening end of a connection to one process: sends commands to it and receives its reports.

    `ended` is set when the process has ended. Reports also arrive at `more` sockets.
    """

    def __init__(self, context: zmq.asyncio.Context, ended: asyncio.Event, *more: zmq.asyncio.Socket) -> None:
        self._ended = ended
        self._socket = pair_socket(context)
        self._sockets = (self._socket, *more)

    def post(self, command: Command) -> None:
        """Send a command; never waits. A command to a process that has ended is dropped."""
        if not self._ended.is_set() and not self._socket.closed:
            self._socket.send(messages.encode_command(command), copy=False)

    async def reports(self) -> AsyncGenerator[list[Report]]:
        """Yield the reports of each message. Ends after the last message of a process that has ended."""
        ended = asyncio.ensure_future(self._ended.wait())
        reads = {socket: asyncio.ensure_future(socket.recv(copy=False)) for socket in self._sockets}
        try:
            while True:
                await asyncio.wait((*reads.values(), ended), return_when=asyncio.FIRST_COMPLETED)
                if ended.done():  # its last messages may still be on the way
                    await asyncio.wait((reads[self._socket],), timeout=LAST_REPORTS_SECONDS)
                    if not reads[self._socket].done():
                        return
                for socket, read in reads.items():
                    if read.cancelled():  # the socket was closed
                        return
                    if read.done():
                        yield messages.decode_reports(read.result().buffer)
                        reads[socket] = asyncio.ensure_future(socket.recv(copy=False))
        finally:
            for future in (ended, *reads.values()):
                future.cancel()


def pair_socket(context: zmq.asyncio.Context) -> zmq.asyncio.Socket:
    """A socket for messages to and from one peer, not yet bound or connected."""
    socket = context.socket(zmq.PAIR)
    socket.set_hwm(0)  # no message is dropped; credit and the admission of requests bound the queue
    socket.linger = 0
    return socket


def bind(socket: zmq.asyncio.Socket, address: str) -> str:
    """Listen at an address, or on a port of the loopback interface if that is impossible; returns the address."""
    try:
        socket.bind(address)
        return address
    except zmq.ZMQError:  # the system has no Unix sockets, or the path is too long for one
        return f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"


@contextlib.contextmanager
def listening(*sockets: zmq.asyncio.Socket) -> Iterator[list[str]]:
    """Listen with each socket, and yield the addresses.

    The files of the sockets are removed at the end of the block, so that no other process can connect later.
    """
    folder = SocketFolder()
    try:
        yield [bind(socket, f"ipc://{folder.path}/{number}") for number, socket in enumerate(sockets)]
    finally:
        folder.close()
