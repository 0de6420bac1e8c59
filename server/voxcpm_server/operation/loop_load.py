"""The load of a front's event loop, and the line of the log that says when it is full."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from voxcpm_grpc.logs import LogLine

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
TICKS = 10  # the load is averaged over so many ticks
FULL = 0.85  # calls wait for each other from this share of the time on; see docs/engines.md
LOG_SECONDS = 60.0  # seconds between two lines while it is full
# Linux has it: nanoseconds that the thread ran, and waited for a processor.
SCHEDULER = Path("/proc/thread-self/schedstat")
BUSY_HOST = (
    "other processes take the processors of its event loop; give the host more of them, or run less on it, such as "
    "decode_workers and engines on the CPU"
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of a thread since its start: that it ran, and that it waited for a processor."""

    ran: float
    waited: float


def thread_usage() -> Usage:
    """The usage of the current thread. Without a count of its waits they are 0."""
    try:
        waited = int(SCHEDULER.read_text("ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        waited = 0.0
    return Usage(time.thread_time(), waited)


class LoopLoad:
    """Measures how much of the time the thread of an event loop has work. All calls of a front pass through it.

    `busy` is the share of the last TICKS seconds in which it ran or waited for a processor, `lag` the longest delay of
    a timer in them. A delay alone does not tell a full loop from one that another program delays once.

    more_fronts: what the operator can do if the loop itself uses the processor
    clock, usage: seconds of the wall clock, and the usage of the thread
    """

    def __init__(
        self,
        more_fronts: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        usage: Callable[[], Usage] = thread_usage,
    ) -> None:
        self.busy = 0.0
        self.lag = 0.0
        self._ran = 0.0
        self._more_fronts = more_fronts
        self._clock = clock
        self._usage = usage
        # The values are the time, the usage and the lag.
        self._ticks: deque[tuple[float, Usage, float]] = deque(maxlen=TICKS + 1)
        self._logged = -LOG_SECONDS

    @property
    def full(self) -> bool:
        """True if the loop always has work. New calls then wait, and streams come late."""
        return self.busy >= FULL

    @property
    def remedy(self) -> str:
        """The remedy of the operator for a loop that is full."""
        return self._more_fronts if self._ran >= self.busy / 2 else BUSY_HOST

    async def watch(self) -> None:
        """Measure the running event loop until cancelled."""
        self.tick(0.0)
        while True:
            due = self._clock() + TICK_SECONDS
            await asyncio.sleep(TICK_SECONDS)
            self.tick(max(0.0, self._clock() - due))

    def tick(self, lag: float) -> None:
        """Measure once, after a timer that was late by `lag` seconds. Log a line if the loop is full."""
        now = self._clock()
        self._ticks.append((now, self._usage(), lag))
        (since, before, _), (_, after, _) = self._ticks[0], self._ticks[-1]
        if now > since:
            self._ran = (after.ran - before.ran) / (now - since)
            self.busy = min(1.0, self._ran + (after.waited - before.waited) / (now - since))
        self.lag = max(lag for _, _, lag in self._ticks)
        if self.full and len(self._ticks) > TICKS and now - self._logged >= LOG_SECONDS:
            self._logged = now
            log.warning(LogLine(f"this front is full: {self.remedy}", busy=self.busy, lag_seconds=self.lag))
