"""Calls that have ended: totals since the start, and figures of the last minute."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from voxcpm_server.values.admin import Recent

if TYPE_CHECKING:
    from voxcpm_server.operation.metrics import Metrics
    from voxcpm_server.rpc.call import Call

SECONDS = 60.0
MAX_CALLS = 20_000  # so many are kept; with more in a minute, the figures cover less time
NO_ERRORS = ("OK", "CANCELLED")


@dataclass(frozen=True, slots=True)
class _Ended:
    at: float
    failed: bool
    audio: float
    first_audio: float | None
    queue: float | None
    underruns: int


class RecentCalls:
    """Counts calls that have ended, and passes them on to the metrics, if there are any."""

    def __init__(self, metrics: Metrics | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.ended_calls = 0
        self.failed_calls = 0
        self.audio_seconds = 0.0
        self._metrics = metrics
        self._clock = clock
        self._began = clock()
        self._calls: deque[_Ended] = deque(maxlen=MAX_CALLS)

    def ended(self, call: Call, code: str, seconds: float) -> None:
        """Count a call that has ended, after `seconds`."""
        failed = code not in NO_ERRORS
        self.ended_calls += 1
        self.failed_calls += failed
        self.audio_seconds += call.audio_seconds
        underruns = call.playback.underruns if call.playback is not None else 0
        first = call.summary and call.summary.first_audio_seconds
        queue = call.summary and call.summary.queue_seconds
        self._calls.append(_Ended(self._clock(), failed, call.audio_seconds, first, queue, underruns))
        if self._metrics is not None:
            self._metrics.ended(call, code, seconds)

    def figures(self) -> Recent:
        """The figures of the last minute, or of the time since the start if that is less."""
        now, calls = self._clock(), self._calls
        while calls and calls[0].at < now - SECONDS:
            calls.popleft()
        since = calls[0].at if len(calls) == MAX_CALLS else max(self._began, now - SECONDS)
        return Recent(
            seconds=now - since,
            calls=len(calls),
            failed=sum(call.failed for call in calls),
            audio=sum(call.audio for call in calls),
            first_audio=[call.first_audio for call in calls if call.first_audio is not None],
            queue=[call.queue for call in calls if call.queue is not None],
            underruns=sum(call.underruns for call in calls),
        )
