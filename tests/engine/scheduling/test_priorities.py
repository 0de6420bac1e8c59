"""Interactive requests come before batch requests, which go on later as if nothing had happened."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from support.engines.tiny import Lagging, Outcome, at_rest, collect, engine, finished, latents, mixed_requests, run

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.errors import QueueFull
from voxcpm_grpc.kernels.launch.host_copy import HostCopy
from voxcpm_grpc.request import Priority, Request, Sampling

pytestmark = pytest.mark.thorough

BATCH = Priority.BATCH


def brief(name: str, steps: int = 3, **options) -> Request:
    text = "Hello." + " And more." * (steps // 10)
    return Request(
        id=name, text=text, sampling=Sampling(min_steps=steps, max_steps=steps, inference_timesteps=4), **options
    )


def steps_until(eng: Engine, outcomes: dict[str, Outcome], id: str) -> int:
    """Run until a request has finished, and return the number of steps."""
    for steps in range(1000):
        if outcomes[id].finished:
            return steps
        assert eng.busy, f"{id} does not finish"
        collect(outcomes, eng.step())
    raise AssertionError(f"{id} does not finish")


def order_of_ends(eng: Engine) -> list[str]:
    outcomes, order = defaultdict(Outcome), []
    while eng.busy:
        collect(outcomes, eng.step())
        order += [id for id, outcome in outcomes.items() if outcome.finished and id not in order]
    return order


def test_interactive_requests_pass_batch_requests_in_the_queue():
    eng = engine(slots=1)
    eng.add(brief("running"))
    eng.add(brief("batch", priority=BATCH))
    eng.add(brief("more of a batch", priority=BATCH, continues=True))
    eng.add(brief("late"))
    eng.add(brief("more of a call", continues=True))
    assert order_of_ends(eng) == ["more of a call", "running", "late", "more of a batch", "batch"]


@pytest.mark.parametrize("copies", [HostCopy, Lagging], ids=["audio at once", "audio later"])
def test_a_batch_stream_that_speaks_gives_its_slot_to_an_interactive_request_at_once(monkeypatch, copies):
    monkeypatch.setattr("voxcpm_grpc.engine.runner.HostCopy", copies)
    eng = engine(slots=2)
    outcomes = defaultdict(Outcome)
    for number in range(2):
        eng.add(brief(f"batch {number}", 30, priority=BATCH))
    for _ in range(6):
        collect(outcomes, eng.step())
    heard = [len(outcomes[f"batch {number}"].audio) for number in range(2)]
    assert all(heard)
    for number in range(2):
        eng.add(brief(f"call {number}", 4))
    assert max(steps_until(eng, outcomes, f"call {number}") for number in range(2)) <= 9
    assert all(len(outcomes[f"batch {number}"].audio) <= heard[number] + 2 for number in range(2))
    run(eng, outcomes=outcomes)
    assert all(finished(outcomes[f"batch {number}"]).steps == 30 for number in range(2))
    assert eng.stats().swaps == 2 and at_rest(eng)


@pytest.mark.parametrize(
    "options", [{"prefill_tokens": 7, "prefix_caching": False}, {"kv_positions": 160, "prefill_tokens": 64}]
)
def test_a_batch_stream_that_gave_way_again_and_again_makes_the_same_audio(options):
    """At every moment: in the queue, during the prefill, and after each step."""
    for request in mixed_requests(4)[1:]:
        alone = engine(slots=1)
        alone.add(request)
        expected = run(alone)[request.id]
        eng, outcomes = engine(slots=1, **options), defaultdict(Outcome)
        eng.add(replace(request, priority=BATCH))
        calls = 0
        while eng.busy:
            calls += 1
            for _ in range(2 + calls % 3):
                collect(outcomes, eng.step())
            if calls < 15:
                eng.add(brief(f"call {calls}", 1))
                steps_until(eng, outcomes, f"call {calls}")
        outcome = outcomes[request.id]
        assert finished(outcome).steps == finished(expected).steps
        np.testing.assert_allclose(latents(outcome), latents(expected), atol=1e-5)
        np.testing.assert_allclose(outcome.waveform, expected.waveform, atol=1e-5)
        assert eng.stats().swaps > 1 and at_rest(eng)


def test_pages_are_taken_from_batch_streams_first():
    eng = engine(slots=4, kv_positions=176)
    eng.add(brief("call", 40))
    eng.add(brief("batch", 40, priority=BATCH))
    eng.add(brief("late call", 40))
    assert order_of_ends(eng) == ["call", "late call", "batch"]
    assert eng.stats().preemptions > 0 and at_rest(eng)


def test_batch_streams_take_no_room_of_the_queue_from_interactive_requests():
    eng = engine(slots=1, max_queue=2)
    outcomes = defaultdict(Outcome)
    eng.add(brief("running"))
    collect(outcomes, eng.step())
    for number in range(2):
        eng.add(brief(f"batch {number}", priority=BATCH))
    with pytest.raises(QueueFull, match="2 requests wait, the limit is 2"):
        eng.add(brief("one too many", priority=BATCH))
    for number in range(2):
        eng.add(brief(f"call {number}"))
    with pytest.raises(QueueFull):
        eng.add(brief("one too many"))
    run(eng, outcomes=outcomes)
    assert sum(outcome.finished is not None for outcome in outcomes.values()) == 5


def test_batch_streams_use_all_capacity_that_is_free():
    eng = engine(slots=2)
    eng.add(brief("call", 12))
    for number in range(3):
        eng.add(brief(f"batch {number}", 3, priority=BATCH))
    assert order_of_ends(eng) == ["batch 0", "batch 1", "batch 2", "call"]
