"""The statistics of VoxCPMAdminService, as tests compare them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any

import grpc
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.pool.engines import questions
from voxcpm_grpc.v1 import admin_pb2, admin_pb2_grpc
from voxcpm_server.services import statistics

# A server that answers later may give older statistics of an engine, and none of a front.
ANSWER_SECONDS = min(statistics.ANSWER_SECONDS, questions.ANSWER_SECONDS)


@dataclass(frozen=True)
class Usage:
    """All that calls hold in a server."""

    calls: int
    uploads: int
    upload_bytes: int
    tasks: int
    slots: int
    requests: int
    pages: int

    def is_within(self, other: Usage) -> bool:
        """True if nothing is held that `other` does not hold. A task that was ending is in `other` alone."""
        return all(ours <= theirs for ours, theirs in zip(astuple(self), astuple(other), strict=True))


class Admin:
    """The statistics of the server under test."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Any) -> None:
        self._stub: Any = admin_pb2_grpc.VoxCPMAdminServiceStub(channel)
        self._metadata = metadata

    async def stats(self) -> admin_pb2.ServerStats:
        answer = await self._stub.GetStats(
            admin_pb2.GetStatsRequest(), metadata=self._metadata, timeout=HANG_SECONDS, wait_for_ready=True
        )
        return answer.stats

    async def usage(self) -> Usage:
        """The usage at a moment after this was called."""
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                asked = time.monotonic()
                stats = await self.stats()
                if time.monotonic() - asked < ANSWER_SECONDS:  # no engine and no front was left out
                    break
        front, engines = stats.front, stats.engines
        return Usage(
            calls=sum(front.open_calls.values()),
            uploads=front.uploads,
            upload_bytes=front.upload_bytes,
            tasks=front.tasks,
            slots=sum(engine.slots_used for engine in engines),
            requests=sum(e.requests_running + e.requests_waiting + e.requests_resting for e in engines),
            pages=sum(engine.pages_used for engine in engines),
        )

    async def until(self, condition: Callable[[Usage], bool]) -> Usage:
        """The first usage for which the condition holds."""
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                if condition(found := await self.usage()):
                    return found
                await asyncio.sleep(0.01)

    async def until_files(self, count: int) -> None:
        """Return when at most this many files are open, as the connections that clients have closed are."""
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                if await self.open_files() <= count:
                    return
                await asyncio.sleep(0.01)

    async def open_files(self) -> int:
        return (await self.stats()).front.open_files

    async def ended(self) -> int:
        return (await self.stats()).front.calls_ended

    async def resident_bytes(self) -> int:
        return (await self.stats()).front.resident_bytes
