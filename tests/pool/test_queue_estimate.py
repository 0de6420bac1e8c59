"""A new stream whose deadline is shorter than the estimated wait for a slot is refused at once."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from support.doubles.fake_engine import MakeFake, request
from support.doubles.pools import everything, patient, pool_of

from voxcpm_grpc.errors import QueueTooLong
from voxcpm_grpc.events import Admitted, AudioChunk
from voxcpm_grpc.ipc.messages import EngineStats
from voxcpm_grpc.pool.estimates import Capacity, StepTime, seconds_until_slot
from voxcpm_grpc.request import Stats

BOOK = "A long story that takes its time. " * 30  # 3,600 steps, or 72 s and more
ONE_SLOT = MakeFake(slots=1, step_seconds=0.02)  # as long as the audio of a step, so that no stream gets ahead


async def refused(pool, name: str, seconds_left: float) -> QueueTooLong:
    with pytest.raises(QueueTooLong) as raised:
        await anext(pool.generate(request(name, 3), seconds_left=seconds_left))
    return raised.value


async def test_a_deadline_shorter_than_the_wait_for_a_slot_is_refused_with_both_figures():
    async with pool_of(ONE_SLOT, settings=patient()) as pool:
        await everything(pool.generate(request("known", 40)))
        book = pool.generate(request("book", 10**6, BOOK), window=10**6)
        assert isinstance(await anext(book), Admitted)
        error = await refused(pool, "refused", 5.0)
        figures = re.search(r"wait for a slot is ([\d.]+) s and the deadline is in ([\d.]+) s; retry", error.message)
        assert figures
        wait, remaining = map(float, figures.groups())
        assert wait > 30.0 and 0.0 < remaining <= 5.0
        assert error.retry_after == pytest.approx(wait - remaining, abs=0.01 * wait)  # of the printed digits
        patient_one = pool.generate(request("patient", 3, BOOK), seconds_left=1e6)
        no_deadline = pool.generate(request("no deadline", 3))
        heard = pool.generate(replace(request("heard", 3), continues=True), seconds_left=1.0)
        assert not any(call.events.peek() for call in (patient_one, no_deadline, heard))
        for call in (book, patient_one, no_deadline, heard):
            await call.aclose()


async def test_a_slot_that_a_stream_ahead_of_its_listener_gives_up_is_soon_enough(monkeypatch):
    monkeypatch.setattr(Capacity, "seconds_to_lead", lambda self, streams: streams / 4)
    async with pool_of(ONE_SLOT, settings=patient()) as pool:
        await everything(pool.generate(request("known", 40)))
        book = pool.generate(request("book", 10**6, BOOK), window=10**6)
        assert isinstance(await anext(book), Admitted)
        soon = pool.generate(request("soon", 3), seconds_left=10.0)
        assert not soon.events.peek()
        await refused(pool, "too soon", 0.01)
        for call in (book, soon):
            await call.aclose()


async def test_nothing_is_refused_while_the_time_of_streams_is_unknown():
    async with pool_of(ONE_SLOT, settings=patient()) as pool:
        book = pool.generate(request("book", 10**6, BOOK), window=10**6)
        assert isinstance(await anext(book), Admitted)
        unknown = pool.generate(request("unknown", 3), seconds_left=0.5)
        assert not unknown.events.peek()
        await book.aclose()
        assert isinstance(await anext(unknown), Admitted)


async def test_a_free_slot_is_enough_for_any_deadline():
    async with pool_of(replace(ONE_SLOT, slots=2), settings=patient()) as pool:
        await everything(pool.generate(request("known", 40)))
        book = pool.generate(request("book", 10**6, BOOK), window=10**6)
        assert len(await everything(pool.generate(request("short", 3), seconds_left=0.001))) == 5
        await book.aclose()


async def test_paused_streams_and_those_that_end_early_shorten_the_wait():
    async with pool_of(ONE_SLOT, settings=patient()) as pool:
        await everything(pool.generate(request("known", 40)))
        stalled = pool.generate(request("stalled", 10**6, BOOK), window=1, first_limit=1)
        assert [type(await anext(stalled)) for _ in range(2)] == [Admitted, AudioChunk]
        assert stalled.paused
        assert len(await everything(pool.generate(request("first", 3), seconds_left=1e3))) == 5
        await stalled.aclose()


@pytest.mark.parametrize(
    ("running", "waiting", "slots", "seconds"),
    [
        ([], [], 1, 0.0),
        ([50.0], [], 2, 0.0),
        ([50.0, 20.0], [], 2, 20.0),
        ([50.0, 20.0], [10.0], 2, 30.0),
        ([50.0, 20.0], [10.0, 100.0], 2, 50.0),
        ([5.0, 6.0, 7.0], [], 2, 6.0),  # one is swapped out and comes before a new stream
    ],
)
def test_a_slot_is_free_when_the_streams_ahead_have_ended(running, waiting, slots, seconds):
    assert seconds_until_slot(running, waiting, slots) == seconds


def test_the_time_of_a_step_follows_the_streams_that_ended_last():
    time = StepTime()
    time.observe(1.0, 2.0)
    assert time.seconds is None
    time.observe(2.0, 100.0)
    assert time.seconds == pytest.approx(0.029, abs=0.001)
    for _ in range(100):
        time.observe(10.0, 100.0)
    assert time.seconds == pytest.approx(0.1, abs=0.001)


def stats(chunks: int, seconds: float) -> EngineStats:
    return EngineStats(Stats(chunks=chunks), seconds)


def test_streams_get_ahead_sooner_the_fewer_there_are():
    capacity = Capacity(0.16)
    assert capacity.seconds_to_lead(1) == math.inf, "nothing is known"
    capacity.observe(stats(0, 0.0), stats(100, 1.6))  # ten streams in real time
    assert capacity.seconds_to_lead(5) == pytest.approx(2.0)
    assert capacity.seconds_to_lead(8) == pytest.approx(8.0)
    assert capacity.seconds_to_lead(10) == capacity.seconds_to_lead(11) == math.inf
