"""Streams go on on another engine when theirs ends or leaves service.

The engines are in this process. `tests/system/chaos/test_continuations.py` ends processes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from support.clients.whole_streams import assert_all_whole, assert_whole, heard, home
from support.doubles.fake_engine import INFO, MakeFake, request
from support.doubles.pools import everything
from support.engines.killable_engines import KillableEngines, pool_over
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import Aborted, Reason
from voxcpm_grpc.events import Event
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import Priority, Sampling


@contextlib.asynccontextmanager
async def running(names: str, *, slots: int = INFO.max_slots) -> AsyncIterator[tuple[EnginePool, KillableEngines]]:
    """A pool of such engines, whose steps take no time."""
    async with pool_over(KillableEngines(names, MakeFake(step_seconds=0.0, slots=slots))) as running_pool:
        yield running_pool


@pytest.mark.parametrize(("names", "count"), [("ab", 7), ("ab", 1), ("a", 7), ("a", 1)])
async def test_a_stream_goes_on_with_its_next_chunk(names, count):
    async with running(names) as (pool, engines):
        stream = pool.generate(request("s", 300))
        first = await heard(stream, count)
        engines.kill(home(pool, stream).name)
        assert_whole([*first, *await everything(stream)], 300)
        assert pool.continuations == stream.continuations == 1


async def test_a_paused_stream_goes_on_when_it_is_read():
    async with running("a") as (pool, engines):
        stream = pool.generate(request("s", 50), window=4)
        first = await heard(stream, 2)
        await until(lambda: stream.paused)
        engines.kill("a")
        assert_whole([*first, *await everything(stream)], 50)
        assert pool.continuations == 1


async def test_a_stream_without_audio_goes_on_from_its_start():
    async with running("ab", slots=1) as (pool, engines):
        streams = [pool.generate(replace(request(f"s{number}", 40), priority=Priority.BATCH)) for number in range(6)]
        engines.kill("a")
        for events in await asyncio.gather(*map(everything, streams)):
            assert_whole(events, 40)


async def test_a_drained_engine_gives_its_streams_to_others():
    async with running("ab") as (pool, _):
        streams = [pool.generate(request(f"s{number}", 400)) for number in range(6)]
        first = [await heard(stream, 2) for stream in streams]
        leaving = pool.replicas[0]
        moved = len(leaving.calls)
        async with asyncio.timeout(HANG_SECONDS):
            await pool.drain(leaving, seconds=HANG_SECONDS)
        assert not leaving.calls and pool.continuations == moved > 0
        await assert_all_whole(first, streams, 400)
        assert all(stream.deaths == 0 for stream in streams)


async def test_the_engine_of_a_stream_that_goes_on_gets_what_is_left_of_its_work():
    async with running("ab") as (pool, engines):
        stream = pool.generate(replace(request("s", 400), sampling=Sampling(min_steps=400, max_steps=400)))
        first = await heard(stream, 100)
        engines.kill(home(pool, stream).name)
        await until(lambda: pool.continuations)
        assert stream.work_here <= 300
        assert_whole([*first, *await everything(stream)], 400)


@pytest.mark.parametrize("names", ["a", "ab", "abc"])
async def test_a_request_that_ends_engines_ends_alone_after_two(names):
    async with running(names) as (pool, engines):
        streams = [pool.generate(request(f"s{number}", 400)) for number in range(9)]
        first = [await heard(stream, 2) for stream in streams]
        poison = pool.generate(request("poison", 30, "crash"))
        with pytest.raises(Aborted) as caught:
            await everything(poison)
        assert caught.value.reason is Reason.REQUEST_ENDED_ENGINES
        await assert_all_whole(first, streams, 400)
        assert engines.kills == 2


async def test_a_text_that_arrives_is_refused_for_what_it_was_and_not_for_its_first_word():
    async with running("ab") as (pool, engines):

        def spoken(id: str, first: str, then: str) -> EngineCall[Event]:
            call = pool.generate(replace(request(id, 30, first), open=True))
            call.append(then, last=True)
            return call

        for id in ("poison", "again"):
            with pytest.raises(Aborted) as caught:
                await everything(spoken(id, "cra", "sh"))
            assert caught.value.reason is Reason.REQUEST_ENDED_ENGINES
        assert engines.kills == 3, "the one that is sent again ends no second engine"
        assert_whole(await everything(spoken("other", "cra", "yon")), 30)
        with pytest.raises(Aborted):
            await everything(pool.generate(request("whole", 30, "crash")))
        assert engines.kills == 3
