"""The restarts of an engine: their number, and the expected time until the next engine is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

UNKNOWN_SECONDS = 15.0  # for the start of an engine that was never started here
OVERDUE = 0.1  # of the time so far, which a start that takes longer than expected is expected to take still


def _ignore(_: float) -> None:
    pass


class Restarts:
    """The number and the expected time of the restarts of one replica. Belongs to one event loop.

    count: the engines that have replaced a lost one
    start_seconds: the duration of the latest start
    on_expected: receives each new expectation, in seconds; see `expect`
    """

    def __init__(self) -> None:
        self.count = 0
        self.start_seconds = UNKNOWN_SECONDS
        self.on_expected: Callable[[float], None] = _ignore
        self._since: float | None = None  # time of the event loop
        self._seconds = UNKNOWN_SECONDS

    def expect(self, seconds: float) -> None:
        """The next engine is expected to be ready in `seconds` from now; never if they are infinite."""
        self._since, self._seconds = asyncio.get_running_loop().time(), seconds
        self.on_expected(seconds)

    @property
    def seconds_left(self) -> float:
        """The expected time until the next engine is ready; infinity if none will be. Valid while there is none."""
        elapsed = 0.0 if self._since is None else asyncio.get_running_loop().time() - self._since
        return max(self._seconds - elapsed, OVERDUE * elapsed)
