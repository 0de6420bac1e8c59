"""The calls in progress, and the refusal of new ones while the server starts and shuts down."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from voxcpm_grpc.errors import Reason, Unavailable


class EndedByShutdown(Exception):
    """`OpenCalls.end` has ended this call, which had `seconds` to finish; None if it had no time."""

    def __init__(self, seconds: float | None) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class OpenCalls:
    """Counts calls, refuses new ones on request, and can end those in progress."""

    def __init__(self) -> None:
        self.methods: Counter[str] = Counter()
        """The number of open calls by method, which may be 0."""
        self._open: set[asyncio.Timeout] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._refusal: Callable[[], Unavailable] | None = None
        self._seconds: float | None = None
        self._arrived = -math.inf  # seconds of the event loop's clock

    def __len__(self) -> int:
        return len(self._open)

    @property
    def refused(self) -> bool:
        """True while new calls are refused."""
        return self._refusal is not None

    def refuse(self, message: str, *, retry_after: float) -> None:
        """Refuse new calls from now on, with UNAVAILABLE and this text, because the server shuts down."""
        self.refuse_with(lambda: Unavailable(message, retry_after=retry_after, reason=Reason.SHUTTING_DOWN))

    def refuse_with(self, error: Callable[[], Unavailable]) -> None:
        """Refuse new calls from now on, each with the result of a function."""
        self._refusal = error

    def admit(self) -> None:
        """Admit new calls from now on."""
        self._refusal = None

    @asynccontextmanager
    async def enter(self, method: str = "") -> AsyncIterator[None]:
        """A call that lasts as long as the block. Raises Unavailable, and EndedByShutdown if `end` ends the block."""
        self._arrived = asyncio.get_running_loop().time()
        if self._refusal is not None:
            raise self._refusal()
        end = asyncio.timeout(None)  # it has no timer: only `end` makes it expire
        self._open.add(end)
        self.methods[method] += 1
        self._idle.clear()
        try:
            async with end:
                yield
        except TimeoutError:
            if end.expired():
                raise EndedByShutdown(self._seconds) from None
            raise
        finally:
            self._open.discard(end)
            self.methods[method] -= 1
            if not self._open:
                self._idle.set()

    async def idle(self) -> None:
        """Wait until no call is open."""
        await self._idle.wait()

    async def quiet(self, seconds: float) -> None:
        """Wait until no call has arrived for so many seconds."""
        now = asyncio.get_running_loop().time
        while (left := self._arrived + seconds - now()) > 0:  # noqa: ASYNC110, a timer is what it waits for
            await asyncio.sleep(left)

    def end(self, seconds: float | None) -> None:
        """End the calls in progress: cancel their blocks, and let them raise EndedByShutdown with `seconds`."""
        self._seconds = seconds
        for call in self._open:
            call.reschedule(0.0)
