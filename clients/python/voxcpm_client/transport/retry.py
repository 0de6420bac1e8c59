"""The deadline and the retries of a call."""

from __future__ import annotations

import asyncio
import random
import time

from voxcpm_client.errors import Exhausted, SpeechError, Unavailable

FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 3.0  # seconds
POLL_SECONDS = 1.0  # seconds of the longest wait for a server that is unavailable
LONGEST_ESTIMATE = 60.0  # seconds; a server that asks for more time does not estimate its start
UNREACHED_SECONDS = 5.0  # seconds for a server that has never answered: its address may be wrong


class Attempts:
    """The attempts of one call: one deadline for all of them, a time and perhaps a number of retries."""

    def __init__(self, *, timeout: float | None, retries: int | None, retry_seconds: float) -> None:
        self.timeout = timeout
        self._ends = None if timeout is None else time.monotonic() + timeout
        self._left = retries
        self._retry_seconds = retry_seconds
        self._failed: float | None = None  # the first failure was at this time
        self._backoff = FIRST_BACKOFF
        self.diagnosed = False  # the first failure of the call has been looked into

    def remaining(self) -> float | None:
        """Seconds until the deadline, at least 0. None if there is no deadline."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    async def pause(self, error: SpeechError, *, reached: bool = True) -> None:
        """Wait before the next attempt, as long as `error` asks for.

        A server that starts asks for the time that it expects to need. It may be ready earlier, so unless the number of
        retries is limited, the client asks again after POLL_SECONDS: a refusal costs little.

        Raises `error` if it does not allow a retry, or if the next attempt would start after the deadline, after
        `retry_seconds` from the first failure, or after the last retry.

        reached: False if the server has never answered; then retries last UNREACHED_SECONDS at most
        """
        delay = self._delay(error)
        if delay is None or not self._allows(delay, reached):
            try:
                raise error
            finally:
                del error  # the error refers to this frame
        if self._left is not None:
            self._left -= 1
        self._backoff = min(2 * self._backoff, LONGEST_BACKOFF)
        await asyncio.sleep(delay)

    def _delay(self, error: SpeechError) -> float | None:
        """The seconds to wait after a failure; None if a new attempt would not help."""
        if isinstance(error, Unavailable):
            if error.retry_after is None:
                return self._backoff * random.uniform(0.5, 1.0)
            if self._left is None and error.retry_after <= LONGEST_ESTIMATE:
                return min(error.retry_after, POLL_SECONDS)
            return error.retry_after
        return error.retry_after if isinstance(error, Exhausted) else None

    def _allows(self, delay: float, reached: bool) -> bool:
        now = time.monotonic()
        if self._failed is None:
            self._failed = now
        seconds = self._retry_seconds if reached else min(self._retry_seconds, UNREACHED_SECONDS)
        remaining = self.remaining()
        return (
            seconds > 0
            and (self._left is None or self._left > 0)
            and now + delay <= self._failed + seconds
            and (remaining is None or delay < remaining)
        )
