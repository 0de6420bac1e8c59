"""Clients that have ended their side of a connection: those that still read, and those that have gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys

SHORTEST_PAUSE = 0.005  # seconds between two looks at the connection; they grow from this
LONGEST_PAUSE = 1.0
CLOSED = 7  # the state of a connection that the other end has reset, in linux/tcp_states.h


def can_tell(connection: socket.socket) -> bool:
    """True if `reset` works with a connection."""
    return sys.platform == "linux" and connection.family in (socket.AF_INET, socket.AF_INET6)


async def reset(connection: socket.socket) -> None:
    """Return when the client of a connection, which has sent the end of its data, does not read any more.

    A client that has ended only its own side, such as `nc -N`, sends the same packet as one that has gone. But the
    kernel of the latter answers new data with a reset. The new data is a byte of TCP's urgent data here, which is no
    part of what the client reads.
    """
    with contextlib.suppress(OSError):  # full, or reset already: data that is on its way has the same effect
        connection.send(b"\0", socket.MSG_OOB)
    pause = SHORTEST_PAUSE
    while connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != CLOSED:
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
