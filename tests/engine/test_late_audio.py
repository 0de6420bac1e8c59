"""Streams whose audio is read after the launch of the next round, when anything happens to them in between."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest
from support.engines.disturbances import break_launches, disturb
from support.engines.tiny import Lagging, Outcome, at_rest, collect, finished, run
from support.engines.toy_engines import asks, check, check_all, toy_engine
from support.engines.toy_family import Toy

from voxcpm_grpc.request import Priority, Request, Sampling


@pytest.fixture(autouse=True, params=[False, True], ids=["audio in time", "late audio"])
def _late_audio(request, monkeypatch):
    """Nothing reaches the host before something waits for it, as on a busy GPU."""
    monkeypatch.setattr("voxcpm_grpc.engine.runner.HostCopy", Lagging)
    monkeypatch.setattr(Toy, "late_audio", request.param)


def disturbed(seed: int, share_of_faults: float) -> list[str]:
    """Run disturbed streams, none of which gives anything else than alone. Returns the launches that have failed."""
    draws = random.Random(seed)
    eng = toy_engine(slots=draws.choice((2, 4)), kv_positions=draws.choice((96, 160, None)), prefill_tokens=16)
    requests = [
        replace(
            ask,
            keep_speech=draws.random() < 0.5,
            open=draws.random() < 0.3,
            priority=draws.choice((Priority.INTERACTIVE, Priority.INTERACTIVE, Priority.BATCH)),
        )
        for ask in asks(8, least=8)
    ]
    failed = break_launches(eng, draws, share_of_faults)
    outcomes = disturb(eng, requests, draws)
    for request in requests:
        check(replace(request, open=False), outcomes[request.id], eng, cut=request.open)
    return failed


@pytest.mark.parametrize("seed", range(4))
def test_streams_that_are_cancelled_at_any_time_go_on_as_they_were(seed):
    disturbed(seed, 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_streams_of_launches_that_fail_go_on_as_they_were(seed):
    assert disturbed(seed, 0.08)


@pytest.mark.thorough
@pytest.mark.nightly
def test_streams_that_anything_happens_to_go_on_as_they_were():
    for seed in range(100, 160):
        disturbed(seed, 0.0 if seed % 2 else 0.1)


def test_no_stream_loses_its_pages_beside_one_whose_end_is_known():
    """Of two pages, the end of one stream frees one in the round in which the other one needs it."""
    eng = toy_engine(slots=2, kv_positions=32, page_size=16)
    ends = Request(id="ends", text="one two three four", sampling=Sampling(seed=88, min_steps=10))
    grows = replace(ends, id="grows", sampling=Sampling(seed=1, max_steps=20, min_steps=20))
    schedule, stopping = eng.scheduler.schedule, list[str]()

    def watched(now):
        before = eng.scheduler.preemptions
        stopping[:] = [sequence.id for sequence in eng.scheduler.running if sequence.stops]
        work = schedule(now)
        assert not (stopping and eng.scheduler.preemptions > before), stopping
        return work

    eng.scheduler.schedule = watched
    for request in (ends, grows):
        eng.add(request)
    check_all([ends, grows], run(eng), eng)
    assert at_rest(eng)


def test_a_cancelled_request_gives_no_speech_to_the_next_one_of_its_name():
    """Its speech has not reached the host when it is cancelled."""
    first, second, other = (replace(ask, id=id, keep_speech=True) for ask, id in zip(asks(3), "aab", strict=True))
    eng, outcomes = toy_engine(), defaultdict[str, Outcome](Outcome)
    eng.add(replace(other, sampling=replace(other.sampling, min_steps=40)))  # so that the engine does not wait for it
    eng.add(first)
    while not (outcomes["a"].audio and eng.stats().running == 1):
        collect(outcomes, eng.step())
    assert outcomes["a"].finished is None
    eng.cancel("a")
    outcomes["a"] = Outcome()
    eng.add(second)
    check(second, run(eng, outcomes=outcomes)["a"], eng)
    assert finished(outcomes["b"]) and at_rest(eng)
