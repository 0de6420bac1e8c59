"""The wait for a slot of an engine, or for an engine that restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

from voxcpm_grpc.errors import Exhausted, Reason
from voxcpm_grpc.events import Event
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.text.durations import duration_text

DEADLINE_SHARE = 0.9  # share of the time left: a refusal that arrives after the deadline is lost
QUEUE_RETRY_SECONDS = 2.0
LOOK_SECONDS = 0.1  # seconds between two looks at a call that waits for text, at least


def longest_wait(max_queue: float, seconds_left: float | None) -> float:
    """The longest wait for a slot, or for an engine that restarts. seconds_left: until the deadline of the caller"""
    return max_queue if seconds_left is None else min(max_queue, DEADLINE_SHARE * seconds_left)


@dataclass(slots=True)
class SlotWait:
    """The wait of a stream without audio for the first event of a call, limited if what it waits for is a slot.

    The wait for an engine that restarts ends in the pool. The wait for text has no limit here, and does not count.

    seconds: the limit, `longest_wait`
    max_queue: the limit without the deadline of the caller
    """

    pool: EnginePool
    call: EngineCall[Event]
    seconds: float
    max_queue: float
    _limit: asyncio.Timeout = field(init=False, default_factory=lambda: asyncio.timeout(None))
    _timer: asyncio.TimerHandle | None = field(init=False, default=None)

    async def first_event(self, reading: Awaitable[Event]) -> Event:
        """Await the first event. Raises Exhausted if there is no slot in time."""
        self._timer = asyncio.get_running_loop().call_later(self.seconds, self._look)
        try:
            async with self._limit:
                return await reading
        except TimeoutError:
            raise Exhausted(
                f"no slot became free within {duration_text(self.seconds)}; retry later or raise max_queue_time",
                retry_after=QUEUE_RETRY_SECONDS,
                reason=Reason.QUEUE_TIMEOUT,
                waited_seconds=f"{self.seconds:g}",
            ) from None
        finally:
            if self._timer is not None:
                self._timer.cancel()

    def _look(self) -> None:
        """End the wait if it has been as long as it may be."""
        if self.pool.waits_for_engine(self.call):
            return
        left, loop = self.seconds - self.call.waited_seconds, asyncio.get_running_loop()
        if self.call.needs_text is not False or left > 0:  # None: the engine has not said so far
            self._timer = loop.call_later(max(left, LOOK_SECONDS), self._look)
        elif self.pool.waits_for_slot(self.call) or self.seconds == self.max_queue:
            self._limit.reschedule(loop.time())  # otherwise the deadline itself ends the call
