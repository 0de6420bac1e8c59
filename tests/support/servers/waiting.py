"""Waiting for what must happen, on a host of any speed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

HANG_SECONDS = 240.0  # a wait that takes longer never ends, however busy the host is
"""Only what hangs takes that long, however busy the host is. No test asserts that anything takes less."""
NEVER_SECONDS = 1000.0
"""Longer than `HANG_SECONDS`: a test that waits for something of this length has hung."""

_PAUSE_SECONDS = 0.01, 0.05  # the shortest one, and the longest, which spares a condition that takes long to hold
_SHARE = 1 / 20  # of the time so far


async def until(condition: Callable[[], object], seconds: float = HANG_SECONDS) -> None:
    """Return once the condition holds. Raises AssertionError after `seconds`."""
    started = time.monotonic()
    while not condition():
        pause = _pause(started, seconds)
        await asyncio.sleep(pause)


def wait_until(condition: Callable[[], object], seconds: float = HANG_SECONDS) -> None:
    """As `until`, for tests without an event loop."""
    started = time.monotonic()
    while not condition():
        time.sleep(_pause(started, seconds))


def _pause(started: float, seconds: float) -> float:
    waited = time.monotonic() - started
    assert waited < seconds, "it does not happen"
    return min(max(_PAUSE_SECONDS[0], waited * _SHARE), _PAUSE_SECONDS[1])
