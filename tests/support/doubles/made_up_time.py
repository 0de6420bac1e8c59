"""An event loop whose clock a test controls: timers expire in order and without a wait."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Returns at once, and moves the clock by the timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "the test waits forever: no timer is set"
        self.now += max(0.0, timeout)
        return super().select(0)


class MadeUpTime(asyncio.SelectorEventLoop):
    """A loop whose `time()` starts at 0 and moves to the next timer when no callback is ready.

    It does not wait for other threads and processes, so it suits tests of coroutines alone.
    """

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now

    def pass_time(self, seconds: float) -> None:
        """Move the clock, as if the running callback took so long."""
        self._clock.now += seconds


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on such a loop, and return its result."""
    with asyncio.Runner(loop_factory=MadeUpTime) as runner:
        return runner.run(main)


def pass_time(seconds: float) -> None:
    """Move the clock of the running loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MadeUpTime)
    loop.pass_time(seconds)
