"""The connections whose clients have not sent a whole request."""

from __future__ import annotations

import asyncio
import logging
import resource
import time

log = logging.getLogger("voxcpm_gateway")

MOST = 1000
LOG_SECONDS = 10.0  # between two lines about connections that were closed


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
