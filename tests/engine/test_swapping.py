"""Paused streams give their slots to others, and go on in another slot as if nothing had happened."""

from __future__ import annotations

import logging
from collections import defaultdict
from dataclasses import replace
from time import monotonic

import numpy as np
import pytest
from support.engines.tiny import Outcome, at_rest, collect, engine, finished, latents, mixed_requests, run

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.errors import Exhausted, Internal, Unavailable
from voxcpm_grpc.events import Finished
from voxcpm_grpc.request import Request, Sampling

pytestmark = pytest.mark.thorough

TOLERANCE = 1e-5


def brief(name: str, steps: int = 3, **options) -> Request:
    return Request(
        id=name, text="Hello.", sampling=Sampling(min_steps=steps, max_steps=steps, inference_timesteps=4), **options
    )


def assert_same(outcome: Outcome, expected: Outcome) -> None:
    assert finished(outcome).steps == finished(expected).steps
    assert finished(outcome).reason == finished(expected).reason
    np.testing.assert_allclose(latents(outcome), latents(expected), atol=TOLERANCE)
    np.testing.assert_allclose(outcome.waveform, expected.waveform, atol=TOLERANCE)


@pytest.fixture(scope="module")
def alone() -> dict[str, Outcome]:
    """The outcome of each request with an engine of its own."""
    outcomes = {}
    for request in mixed_requests():
        eng = engine(slots=1)
        eng.add(request)
        outcomes |= run(eng)
    return outcomes


def resume(eng: Engine, outcomes: dict[str, Outcome], id: str, chunks: int) -> Outcome:
    """Let a stream make some chunks again and again, and run another stream in its slot each time it has made them."""
    passers = 0
    while outcomes[id].finished is None and outcomes[id].error is None:
        passers += 1
        eng.add(brief(f"{id} passer {passers}"))
        run(eng, outcomes=outcomes)
        assert outcomes[f"{id} passer {passers}"].finished
        eng.allow(id, len(outcomes[id].audio) + chunks)
        run(eng, outcomes=outcomes)
    return outcomes[id]


@pytest.mark.parametrize("stalled", [1, 2, 9])
def test_new_streams_take_the_slots_of_paused_streams(stalled):
    eng = engine(slots=2)
    outcomes = defaultdict(Outcome)
    for number in range(stalled):
        eng.add(brief(f"stalled {number}", 20), limit=2)
    run(eng, outcomes=outcomes)
    for number in range(4):
        eng.add(brief(f"new {number}"))
    run(eng, outcomes=outcomes)
    assert all(finished(outcomes[f"new {number}"]).steps == 3 for number in range(4))
    assert all(len(outcomes[f"stalled {number}"].audio) == 2 for number in range(stalled))
    for number in range(stalled):
        eng.allow(f"stalled {number}", 22)
    run(eng, outcomes=outcomes)
    assert all(finished(outcomes[f"stalled {number}"]).steps == 20 for number in range(stalled))
    assert at_rest(eng)


@pytest.mark.parametrize(
    ("limit", "options"), [(1, {}), (3, {}), (3, {"prefill_tokens": 7}), (3, {"prefix_caching": False})]
)
def test_a_stream_that_was_swapped_out_makes_the_same_audio(alone, limit, options):
    """With each kind of voice, from every step on, and again and again."""
    eng = engine(slots=1, **options)
    outcomes = defaultdict(Outcome)
    for request in mixed_requests():
        eng.add(request, limit=limit)
        assert_same(resume(eng, outcomes, request.id, limit), alone[request.id])
    assert eng.stats().swaps > 8
    assert at_rest(eng)


@pytest.mark.parametrize("options", [{}, {"kv_positions": 128, "prefill_tokens": 64}])
def test_streams_that_share_slots_make_the_same_audio(alone, options):
    eng = engine(slots=2, **options)
    outcomes = defaultdict(Outcome)
    open_ids = [request.id for request in mixed_requests()]
    for request in mixed_requests():
        eng.add(request, limit=2)
    while open_ids:
        run(eng, outcomes=outcomes)
        open_ids = [id for id in open_ids if outcomes[id].finished is None]
        for id in open_ids[::2] or open_ids:
            eng.allow(id, len(outcomes[id].audio) + 3)
    for id, expected in alone.items():
        assert_same(outcomes[id], expected)
    assert eng.stats().swaps > 0 and at_rest(eng)


def test_a_stream_that_was_swapped_out_sends_admitted_once():
    eng = engine(slots=1)
    eng.add(brief("a", 4), limit=2)
    outcomes = run(eng)
    admitted = outcomes["a"].admitted
    assert resume(eng, outcomes, "a", 2).admitted is admitted  # `collect` accepts only one


def test_a_stream_that_was_swapped_out_can_be_cancelled():
    eng = engine(slots=1)
    eng.add(brief("a", 9), limit=2)
    run(eng)
    eng.add(brief("b", 9), limit=2)
    run(eng)
    assert eng.stats().swapped == 1
    eng.cancel("a")
    assert eng.stats().swapped == 0
    eng.allow("a", 7)
    assert not eng.busy
    eng.cancel("b")
    assert at_rest(eng)


def test_a_stream_that_is_swapped_out_and_returns_has_two_debug_lines(caplog):
    caplog.set_level(logging.DEBUG, "voxcpm_grpc.engine")
    eng = engine(slots=1)
    eng.add(brief("a", 3), limit=2)
    outcomes = run(eng)
    eng.add(brief("b", 1), limit=1)
    run(eng)
    resume(eng, outcomes, "a", 1)
    assert [record.getMessage() for record in caplog.records] == [
        "swapped out request=a slot=0 chunks=2",
        "restored request=a slot=0 chunks=2",
    ]


def test_a_stream_of_which_audio_was_sent_comes_before_new_streams():
    eng = engine(slots=1)
    eng.add(brief("first", 6), limit=2)
    outcomes = run(eng)
    eng.add(brief("second", 3))
    eng.add(brief("new"))
    collect(outcomes, eng.step())
    eng.allow("first", 11)
    order = []
    while eng.busy:
        results = eng.step()
        collect(outcomes, results)
        order += [id for id, event in results if isinstance(event, Finished)]
    assert order == ["second", "first", "new"]


def test_the_queue_counts_only_requests_that_wait_for_their_first_slot():
    eng = engine(slots=2, max_queue=1)
    for number in range(4):
        eng.add(brief(f"stalled {number}", 20), limit=1)
        run(eng)
    stats = eng.stats()
    assert (stats.swapped, stats.waiting) == (2, 0)
    for number in range(3):  # two take the slots of paused streams, one waits
        eng.add(brief(f"new {number}"))
    with pytest.raises(Exhausted, match="1 requests wait"):
        eng.add(brief("refused"))
    outcomes = run(eng)
    assert all(outcomes[f"new {number}"].finished for number in range(3))


def test_a_stream_whose_state_cannot_be_saved_fails_and_the_engine_goes_on(monkeypatch, alone):
    eng = engine(slots=1)
    eng.add(brief("lost", 9), limit=1)
    run(eng)

    def fail(*_):
        raise RuntimeError("no pinned memory at /secret")

    with monkeypatch.context() as patch:
        patch.setattr(eng.runner.slots.__class__, "save", fail)
        eng.add(brief("unlucky"))
        outcomes = run(eng)
    for id in ("lost", "unlucky"):
        error = outcomes[id].error
        assert isinstance(error, Unavailable) and "secret" not in error.message
    assert at_rest(eng)
    request = mixed_requests()[0]
    eng.add(request)
    assert_same(run(eng)[request.id], alone[request.id])


def test_a_failed_prefill_of_a_stream_that_returns_ends_it_alone(monkeypatch, alone):
    eng = engine(slots=2)
    returning, running = mixed_requests(2)
    eng.add(returning, limit=1)
    outcomes = run(eng)
    for number in range(2):
        eng.add(brief(f"passer {number}", 9), limit=1)
        run(eng, outcomes=outcomes)
    assert eng.stats().swapped == 1
    poisoned, encode = {returning.id}, eng.model.encode

    def encode_unless_poisoned(slot, patch, state, **options):
        slots = {s.slot for s in eng.scheduler.running if s.id in poisoned}
        if slots & set(slot.tolist()):
            raise ValueError("a secret")
        return encode(slot, patch, state, **options)

    monkeypatch.setattr(eng.model, "encode", encode_unless_poisoned)
    eng.allow(returning.id, 51)
    eng.add(running)
    run(eng, outcomes=outcomes)
    assert isinstance(outcomes[returning.id].error, Internal)
    assert_same(outcomes[running.id], alone[running.id])


def test_the_state_of_a_stream_is_freed_when_it_returns():
    eng = engine(slots=1)
    eng.add(brief("a", 9), limit=2)
    outcomes = run(eng)
    sequence = eng._sequences["a"]
    eng.add(brief("b"))
    run(eng, outcomes=outcomes)
    assert sequence.saved
    eng.allow("a", 3)
    run(eng, outcomes=outcomes)
    assert sequence.saved is None


@pytest.mark.parametrize("continues", [False, True])
def test_a_stream_far_ahead_of_its_playback_gives_its_slot_and_makes_the_same_audio(alone, continues):
    """To a new stream, and to one that continues. A stream that waits with audio left gets the slot after them."""
    eng = engine(slots=1)
    ahead = replace(mixed_requests()[7], keep_speech=True)
    eng.add(ahead)
    outcomes = defaultdict(Outcome)
    while len(outcomes[ahead.id].audio) < 20:
        collect(outcomes, eng.step())
    eng._sequences[ahead.id].plays_until = monotonic() + 100.0  # as if all of it had been made in one moment
    eng.add(brief("carried", continues=True, lead_seconds=1000.0))
    eng.add(brief("dry", continues=continues))
    order = []
    while eng.busy:
        results = eng.step()
        collect(outcomes, results)
        order += [id for id, event in results if isinstance(event, Finished)]
    assert order == ["dry", ahead.id, "carried"]
    assert_same(outcomes[ahead.id], alone[ahead.id])
    assert at_rest(eng)
