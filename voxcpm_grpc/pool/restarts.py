"""The restarts of an engine: their number, and the expected time until the next engine is ready."""

from __future__ import annotations

import asyncio

# The start of an engine that was never started here. The second start is expected to take no longer, because the first
# one may compile kernels and read files from a disk.
UNKNOWN_SECONDS = 15.0
OVERDUE = 0.1  # of the time so far, which a start that takes longer than expected is expected to take still


class Restarts:
    """The number and the expected time of the restarts of one replica. Belongs to one event loop.

    count: the engines that have replaced a lost one
    start_seconds: the expected duration of the next start, which is that of the latest one
    """

    def __init__(self) -> None:
        self.count = 0
        self.start_seconds = UNKNOWN_SECONDS
        self._first = True
        self._since: float | None = None  # time of the event loop
        self._seconds = UNKNOWN_SECONDS

    def started(self, seconds: float) -> None:
        """An engine has started within so many seconds."""
        self.start_seconds = min(seconds, UNKNOWN_SECONDS) if self._first else seconds
        self._first = False

    def expect(self, seconds: float) -> None:
        """The next engine is expected to be ready in `seconds` from now; never if they are infinite."""
        self._since, self._seconds = asyncio.get_running_loop().time(), seconds

    @property
    def seconds_left(self) -> float:
        """The expected time until the next engine is ready; infinity if none will be. Valid while there is none."""
        elapsed = 0.0 if self._since is None else asyncio.get_running_loop().time() - self._since
        return max(self._seconds - elapsed, OVERDUE * elapsed)
