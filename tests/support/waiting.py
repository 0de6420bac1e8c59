"""Waiting for what must happen, on a host of any speed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

HANG_SECONDS = 240.0  # a wait that takes longer never ends, however busy the host is
"""Only what hangs takes that long, however busy the host is. No test asserts that anything takes less."""
NEVER_SECONDS = 1000.0
"""Longer than `HANG_SECONDS`: a test that waits for something of this length has hung."""

_PAUSE_SECONDS = 0.01


async def until(condition: Callable[[], object], seconds: float = HANG_SECONDS) -> None:
    """Return once the condition holds. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        await asyncio.sleep(_PAUSE_SECONDS)


def wait_until(condition: Callable[[], object], seconds: float = HANG_SECONDS) -> None:
    """As `until`, for tests without an event loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(_PAUSE_SECONDS)
