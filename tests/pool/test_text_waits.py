"""Streams that wait for text: a front counts them neither among those that run nor among those that wait for a slot."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from support.doubles.pools import everything
from support.engines.killable_engines import KillableEngines, pool_over
from support.engines.toy_engines import TEXT, toy_engine
from support.engines.toy_family import expected
from support.servers.waiting import until

from voxcpm_grpc.errors import Exhausted, Reason, Unavailable
from voxcpm_grpc.events import Admitted, AudioChunk, Event, Finished
from voxcpm_grpc.pool import engine_call
from voxcpm_grpc.pool.balancer import Room, work_of
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import Request, Sampling

ASK = Request(id="a", text=TEXT, sampling=Sampling(seed=4, min_steps=20))
SOME = "the quick brown "  # two words are complete
PART = "th"  # no word is


@asynccontextmanager
async def toy_pool(
    names: str = "a", *, slots: int = 1, max_queue: int = 1
) -> AsyncIterator[tuple[EnginePool, KillableEngines]]:
    async with pool_over(KillableEngines(names, partial(toy_engine, slots=slots, max_queue=max_queue))) as running_pool:
        yield running_pool


async def waiting_for_text(pool: EnginePool, text: str, count: int = 1) -> list[EngineCall[Event]]:
    """Calls that have only the start of a text. Each gives its slot to the next one, if it has had one."""
    calls = list[EngineCall[Event]]()
    for number in range(count):
        calls.append(pool.generate(replace(ASK, id=f"a{number}", text=text, open=True), max_wait=60.0))
        await until(lambda: calls[-1].needs_text)
    return calls


def check(events: list[Event]) -> None:
    assert isinstance(events[-1], Finished)
    audio = np.concatenate([event.samples for event in events if isinstance(event, AudioChunk)])
    assert np.array_equal(audio, expected(ASK, toy_engine(slots=1).info.completed).audio)


@pytest.mark.parametrize("text", [PART, SOME], ids=["before", "after"])
async def test_they_count_neither_as_streams_nor_as_a_queue(text):
    """Before their first slot, and after it."""
    async with toy_pool() as (pool, _):
        [replica] = pool.replicas
        calls = await waiting_for_text(pool, text, 5)
        assert (replica.running, replica.queued(), replica.has_queue()) == (0, 0, False)
        assert replica.load() == (Room.SLOT, 0.0)
        assert not replica.queue_seconds()
        check(await everything(pool.generate(ASK)))
        for call in calls:
            call.append(TEXT.removeprefix(text), last=True)
            check(await everything(call))


async def test_the_engine_refuses_one_that_finds_the_queue_full_when_its_text_is_enough():
    async with toy_pool() as (pool, _):
        calls = await waiting_for_text(pool, PART, 3)
        for call in calls:
            call.append(TEXT.removeprefix(PART), last=True)
        check(await everything(calls[0]))
        check(await everything(calls[1]))
        with pytest.raises(Exhausted) as refused:
            await everything(calls[2])
        assert refused.value.reason is Reason.QUEUE_FULL


async def test_one_that_gets_text_counts_again():
    async with toy_pool() as (pool, engines):
        [replica] = pool.replicas
        [call] = await waiting_for_text(pool, PART)
        loads = list[tuple[Room, float]]()
        engines.after_round = lambda name: loads.append(replica.load())
        call.append(TEXT.removeprefix(PART), last=True)
        check(await everything(call))
        assert max(loads)[0] > Room.SLOT and max(steps for _, steps in loads) > 20


async def test_the_work_of_a_call_grows_with_its_text():
    async with toy_pool() as (pool, _):
        [call] = await waiting_for_text(pool, PART)
        for word in TEXT.removeprefix(PART).split(" "):
            call.append(f"{word} ")
        assert call.steps_left == pytest.approx(work_of(replace(ASK, text=TEXT), pool.info), rel=0.1)


@pytest.fixture
def pass_time(monkeypatch):
    """Let the calls see a clock that jumps."""
    skew = [0.0]
    monkeypatch.setattr(engine_call, "monotonic", lambda: time.monotonic() + skew[0])

    def jump(seconds: float) -> None:
        skew[0] += seconds

    return jump


@pytest.mark.parametrize("text", [PART, SOME], ids=["before", "after"])
async def test_the_wait_for_text_leaves_the_whole_time_for_an_engine_that_restarts(pass_time, text):
    async with toy_pool() as (pool, engines):
        [call] = await waiting_for_text(pool, text)
        for _ in range(2):
            pass_time(300.0)
            engines.kill("a")
            await until(lambda: pool.healthy)
            await until(lambda: call.needs_text)
        call.append(TEXT.removeprefix(text), last=True)
        events = await everything(call)
        check(events)
        assert isinstance(events[0], Admitted) and events[0].queue_seconds < 60.0


async def test_the_time_until_a_lost_engine_has_begun_counts_as_before(pass_time):
    async with toy_pool() as (pool, engines):
        call = pool.generate(ASK, max_wait=60.0)
        await until(lambda: pool.replicas[0].calls)
        pass_time(300.0)
        engines.kill("a")
        with pytest.raises(Unavailable):
            await everything(call)
