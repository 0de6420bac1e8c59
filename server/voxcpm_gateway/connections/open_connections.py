"""Connections whose clients have ended their side, and those whose clients have not sent a whole request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import sys
import time

SHORTEST_PAUSE = 0.005  # seconds between two looks at the connection; they grow from this
LONGEST_PAUSE = 1.0
CLOSED = 7  # linux/tcp_states.h gives this state to a connection that the other end has reset


def can_tell(connection: socket.socket) -> bool:
    """True if `reset` works with a connection."""
    return sys.platform == "linux" and connection.family in (socket.AF_INET, socket.AF_INET6)


async def reset(connection: socket.socket) -> None:
    """Return when the client of a connection, which has sent the end of its data, does not read any more.

    A client that has ended only its own side, such as `nc -N`, sends the same packet as one that has gone. But the
    kernel of the latter answers new data with a reset. The new data is a byte of TCP's urgent data here, which is no
    part of what the client reads.
    """
    # The buffer is full, or the connection is reset already: data that is on its way has the same effect.
    with contextlib.suppress(OSError):
        connection.send(b"\0", socket.MSG_OOB)
    pause = SHORTEST_PAUSE
    while connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != CLOSED:
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


log = logging.getLogger("voxcpm_gateway")

MOST = 1000
LOG_SECONDS = 10.0  # seconds between two lines about connections that were closed


class WaitingConnections:
    """The connections that wait for the head of a request, the oldest first. If there are too many, it is closed.

    So clients that open connections and send nothing, or only half a request, do not keep others out.

    most: largest number of connections
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[asyncio.Transport, None] = {}
        self._closed = 0
        self._logged = -LOG_SECONDS

    def add(self, transport: asyncio.Transport) -> None:
        self._waiting[transport] = None
        if len(self._waiting) > self._most:
            oldest = next(iter(self._waiting))
            self.discard(oldest)
            oldest.abort()
            self._closed += 1
            self._log()

    def discard(self, transport: asyncio.Transport) -> None:
        self._waiting.pop(transport, None)

    def _log(self) -> None:
        if (now := time.monotonic()) < self._logged + LOG_SECONDS:
            return
        log.warning(
            "more than %d connections wait without a whole request; the oldest were closed (%d so far)",
            self._most,
            self._closed,
        )
        self._logged = now


def most_waiting() -> int:
    """The largest number of connections that may wait: half of the files that this process may open, at most MOST."""
    return min(MOST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
