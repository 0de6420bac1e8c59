"""The calls that wait for an engine, because none can take them before one has restarted."""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections.abc import Sequence

from voxcpm_grpc.errors import Exhausted, Reason, Unavailable, broken_off
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.replica import Replica
from voxcpm_grpc.text.durations import duration_text

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0  # seconds until another attempt, at least


class WaitingCalls:
    """Calls in the order of their arrival, each until its `wait_until`, for an engine of the `replicas` of a pool.

    A call that its reader closes or drops no longer counts. Belongs to one event loop.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._timers: dict[weakref.ref[EngineCall], asyncio.TimerHandle] = {}

    def __contains__(self, call: EngineCall) -> bool:
        return weakref.ref(call) in self._timers

    @property
    def streams(self) -> int:
        """The number of calls that need a slot. For any thread."""
        return sum(call.is_stream for call in self._calls)

    @property
    def _calls(self) -> list[EngineCall]:
        return [call for reference in list(self._timers) if (call := reference()) and not call.ended]

    def add(self, call: EngineCall) -> None:
        """Let a call wait, or end it at once: if no engine is expected in time, or too many new streams wait."""
        seconds, left = self._seconds_to_engine, max(0.0, call.wait_seconds_left)
        if seconds > left:
            self._give_up(call)
        elif call.is_new and (waiting := sum(one.is_new for one in self._calls)) >= (limit := self._limit):
            call.fail(
                Exhausted(
                    f"no engine is ready and {waiting} requests wait for one, the limit is {limit:g}; try again later",
                    retry_after=max(RETRY_SECONDS, seconds),
                    reason=Reason.QUEUE_FULL,
                    waiting=waiting,
                    limit=f"{limit:g}",
                )
            )
        else:
            logger.debug(LogLine("waits for an engine", request_id=call.log_id, call=call.name, expected=seconds))
            reference = weakref.ref(call)
            self._timers[reference] = asyncio.get_running_loop().call_later(left, self._end, reference)

    def take(self) -> list[EngineCall]:
        """Remove all calls, and return those that have a reader."""
        calls = self._calls
        for timer in self._timers.values():
            timer.cancel()
        self._timers = {}
        return calls

    def no_engine(self, call: EngineCall) -> Unavailable:
        """The error of a call that waits no longer, with the expected time until an engine is ready."""
        seconds = self._seconds_to_engine
        if math.isinf(seconds):
            text, seconds = "no engine can serve this now, and none is being started; use another server", RETRY_SECONDS
        else:
            seconds = max(seconds, RETRY_SECONDS)
            longer = " or raise max_queue_time" if call.is_stream else ""
            text = (
                f"no engine is ready, and the next one is expected in {duration_text(seconds)}; try again then{longer}"
            )
        return Unavailable(text, retry_after=seconds, reason=Reason.NO_ENGINE)

    def _end(self, reference: weakref.ref[EngineCall]) -> None:
        del self._timers[reference]
        if (call := reference()) and not call.ended:
            self._give_up(call)

    def _give_up(self, call: EngineCall) -> None:
        error = self.no_engine(call)
        call.fail(broken_off(error) if call.has_output else error)

    @property
    def _expected(self) -> list[float]:
        """The expected time until each engine that starts is ready, in seconds."""
        starting = [one.restarts.seconds_left for one in self._replicas if not (one.ready or one.draining)]
        return [seconds for seconds in starting if math.isfinite(seconds)]

    @property
    def _seconds_to_engine(self) -> float:
        """The expected time until an engine can take a call, 0.0 if one is ready; infinity if none will."""
        return 0.0 if any(one.ready for one in self._replicas) else min(self._expected, default=math.inf)

    @property
    def _limit(self) -> float:
        """The most new streams: the slots and the queues of the engines that start."""
        info = next((one.info for one in self._replicas if one.info), None)
        if info is None or info.max_queue is None:
            return math.inf
        return (info.max_slots + info.max_queue) * max(1, len(self._expected))
