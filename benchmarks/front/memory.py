"""Memory of this process, on Linux."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path
from types import TracebackType
from typing import Self

SAMPLE_SECONDS = 0.2
PAGE_BYTES = resource.getpagesize()


def resident_bytes() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


class PeakMemory:
    """The largest number of resident bytes inside the block, from samples of the event loop."""

    def __init__(self) -> None:
        self.peak = 0

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._sample())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._task.cancel()
        self.peak = max(self.peak, resident_bytes())

    async def _sample(self) -> None:
        while True:
            self.peak = max(self.peak, resident_bytes())
            await asyncio.sleep(SAMPLE_SECONDS)
