"""The deadline and the retries of a call."""

from __future__ import annotations

import asyncio
import random
import time

from voxcpm_client.errors import Exhausted, SpeechError, Unavailable

FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 3.0  # seconds


class Attempts:
    """The attempts of one call: one deadline for all of them, and a number of retries."""

    def __init__(self, *, timeout: float | None, retries: int) -> None:
        self.timeout = timeout
        self._ends = None if timeout is None else time.monotonic() + timeout
        self._left = retries
        self._backoff = FIRST_BACKOFF

    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0. None if there is no deadline."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    async def pause(self, error: SpeechError) -> None:
        """Wait before the next attempt, as long as `error` asks for.

        Raises `error` if it does not allow a retry, if no retries are left, or if the deadline comes first.
        """
        if isinstance(error, Unavailable):
            delay = self._backoff * random.uniform(0.5, 1.0) if error.retry_after is None else error.retry_after
        elif isinstance(error, Exhausted) and error.retry_after is not None:
            delay = error.retry_after
        else:
            raise error
        remaining = self.remaining()
        if self._left <= 0 or delay == float("inf") or (remaining is not None and delay >= remaining):
            raise error
        self._left -= 1
        self._backoff = min(2 * self._backoff, LONGEST_BACKOFF)
        await asyncio.sleep(delay)
