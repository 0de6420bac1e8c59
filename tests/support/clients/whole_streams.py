"""Streams of fake engines: what is read of them, the engine that they are on, and their end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
from support.doubles.fake_engine import request
from support.doubles.pools import chunks_of, everything
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.errors import Aborted, Reason, VoxCPMError
from voxcpm_grpc.events import Admitted, AudioChunk, Event, Finished
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.replica import Replica

UNREAD = 128  # the most chunks that an engine makes for a stream that is not read


def home(pool: EnginePool, call: EngineCall[Event]) -> Replica:
    [replica] = [replica for replica in pool.replicas if call in replica.calls]
    return replica


async def heard(stream: EngineCall[Event], chunks: int) -> list[Event]:
    """The first events of a stream, with so many chunks or a few more, where an engine has merged some."""
    events = list[Event]()
    async with asyncio.timeout(HANG_SECONDS):
        while chunks_of(events) < chunks:
            events.append(await anext(stream))
    return events


def assert_whole(events: list[Event], chunks: int) -> Finished:
    """Each chunk came once and in order, with the audio that it has on one engine."""
    admitted, *made, finished = events
    assert isinstance(admitted, Admitted) and isinstance(finished, Finished)
    end = 0
    for chunk in made:
        assert isinstance(chunk, AudioChunk)
        assert chunk.index == end
        end = chunk.end
        samples = np.split(chunk.samples, chunk.chunks)
        assert [set(one.tolist()) for one in samples] == [{index} for index in range(chunk.index, chunk.end)]
    assert end == chunks == finished.steps
    return finished


async def assert_all_whole(first: list[list[Event]], streams: list[EngineCall[Event]], chunks: int) -> None:
    """As `assert_whole`. `first`: the events that were read of each stream."""
    for before, rest in zip(first, await asyncio.gather(*map(everything, streams)), strict=True):
        assert_whole([*before, *rest], chunks)


async def speaking(pool: EnginePool, id: str, steps: int = 100_000) -> EngineCall[Event]:
    """A stream that has delivered audio."""
    stream = pool.generate(request(id, steps))
    assert isinstance(await anext(stream), Admitted)
    assert isinstance(await anext(stream), AudioChunk)
    return stream


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """The block ends as a request does with which two engines have ended."""
    with pytest.raises(Aborted) as caught:
        yield
    assert caught.value.reason is Reason.REQUEST_ENDED_ENGINES


async def until_error(stream: EngineCall[Event]) -> Exception | None:
    """Read more chunks than an engine makes for a stream that is not read."""
    try:
        async with contextlib.aclosing(stream):
            await heard(stream, 2 * UNREAD)
    except VoxCPMError as error:
        return error
    return None
