import gc
import logging
import random
import re
import weakref
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.doubles.cycles import no_garbage
from support.engines.tiny import (
    Lagging,
    Outcome,
    at_rest,
    collect,
    engine,
    finished,
    mixed_requests,
    run,
    voice,
    watch_launches,
)
from support.engines.voice_parts import latents_of, voice_part
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.engine import runner
from voxcpm_grpc.errors import Internal, InvalidRequest, Unavailable
from voxcpm_grpc.events import Admitted, AudioChunk
from voxcpm_grpc.models.voxcpm.model import VoxCPM
from voxcpm_grpc.request import Conditioning, Request, Role, Sampling

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def alone():
    """The outcome of each request with an engine of its own."""
    outcomes = {}
    for request in mixed_requests():
        eng = engine(slots=1)
        eng.add(request)
        outcomes[request.id] = run(eng)[request.id]
        assert at_rest(eng)
    assert len({outcome.finished.steps for outcome in outcomes.values()}) > 3, "the requests should differ in length"
    return outcomes


def assert_same(outcome, expected):
    assert outcome.error is None
    assert (outcome.finished.steps, outcome.finished.reason) == (expected.finished.steps, expected.finished.reason)
    np.testing.assert_allclose(
        latents_of(outcome.finished.speech), latents_of(expected.finished.speech), atol=TOLERANCE
    )
    np.testing.assert_allclose(outcome.waveform, expected.waveform, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("order", "options"),
    [
        *((order, {}) for order in range(2)),
        (1, {"prefill_tokens": 7}),
        (0, {"page_size": 32}),
        (1, {"prefix_caching": False}),
        pytest.param(0, {"prefill_tokens": 7}, marks=pytest.mark.thorough),
        pytest.param(1, {"page_size": 32}, marks=pytest.mark.thorough),
        pytest.param(0, {"prefix_caching": False}, marks=pytest.mark.thorough),
    ],
)
def test_batched_equals_alone(alone, order, options):
    eng = engine(**options)
    requests = mixed_requests()
    random.Random(order).shuffle(requests)
    arrivals = iter(requests)

    def arrive():
        if order and (request := next(arrivals, None)):  # order 0: all at once
            eng.add(request)

    if not order:
        for request in requests:
            eng.add(request)
    else:
        eng.add(next(arrivals))
    outcomes = run(eng, arrive)
    assert set(outcomes) == set(alone)
    for name, outcome in outcomes.items():
        assert_same(outcome, alone[name])
    stats = eng.stats()
    assert at_rest(eng) and stats.finished == 8 and stats.preemptions == 0
    if not options.get("prefix_caching", True):
        assert stats.prefix_hit_tokens == 0
    elif order:
        assert stats.prefix_hit_tokens > 0


def test_prompts_that_open_together_are_primed_at_once(alone, monkeypatch):
    eng, counts = engine(prefill_tokens=1024), []
    assert eng.model.primed_at_once == 1  # a CPU gains nothing
    prime = eng.model.prime
    monkeypatch.setattr(eng.model, "primed_at_once", 4)
    monkeypatch.setattr(eng.model, "prime", lambda slot, state: (counts.append(len(slot)), prime(slot, state))[1])
    for request in mixed_requests():
        eng.add(request)
    for name, outcome in run(eng).items():
        assert_same(outcome, alone[name])
    assert counts == [2]  # the prompts of seven patches; those of two are too short for the codec's whole context


def test_long_recordings_are_encoded_in_parts(alone, monkeypatch):
    monkeypatch.setattr(runner, "MAX_ENTRIES", 3)
    eng = engine()
    encode, counts = eng.model.encode, []
    monkeypatch.setattr(
        eng.model,
        "encode",
        lambda slot, *a, **options: (counts.append(len(slot)), encode(slot, *a, **options))[1],
    )
    for request in mixed_requests():
        eng.add(request)
    for name, outcome in run(eng).items():
        assert_same(outcome, alone[name])
    assert max(counts) == 3 and len(counts) > 3


def test_preemption_changes_nothing(alone, caplog):
    caplog.set_level(logging.DEBUG, "voxcpm_grpc.engine")
    eng = engine(kv_positions=128, prefill_tokens=64)
    for request in mixed_requests():
        eng.add(replace(request, log_id=f"rpc-{request.id}"))
    outcomes = run(eng)
    for name, expected in alone.items():
        assert_same(outcomes[name], expected)
    lines = [line for record in caplog.records if (line := record.getMessage()).startswith("preempted ")]
    assert len(lines) == eng.stats().preemptions > 0
    assert all(re.fullmatch(r"preempted request=(\S+) id=rpc-\1 chunks=\d+", line) for line in lines), lines
    assert at_rest(eng)


def test_a_reference_is_prefilled_once_and_found_in_the_cache(alone):
    eng = engine()
    requests = [request for request in mixed_requests() if request.conditioning.reference is not None]
    for request in requests:
        eng.add(request)
        assert_same(run(eng)[request.id], alone[request.id])
    assert eng.stats().prefix_hit_tokens >= (len(requests) - 1) * 16
    assert at_rest(eng)


def test_a_repeated_request_reuses_all_pages_but_the_last_position(alone):
    eng = engine()
    request = mixed_requests()[0]
    text = "x" * 30  # with the audio_start token, pages are filled exactly
    outcomes = []
    for _ in range(2):
        eng.add(replace(request, text=text))
        outcomes.append(run(eng)[request.id])
    first, second = outcomes
    assert first.admitted.cached_tokens == 0
    assert 0 < second.admitted.cached_tokens < second.admitted.prompt_tokens == 32
    np.testing.assert_allclose(first.waveform, second.waveform, atol=TOLERANCE)


def test_noise_depends_on_seed_turn_and_segment_only():
    eng = engine()
    base = Request(id="0", text="Hello.", sampling=Sampling(seed=5, max_steps=6))
    variants = [
        base,
        replace(base, id="1"),
        replace(base, id="2", turn=1),
        replace(base, id="3", segment=1),
        replace(base, id="4", sampling=Sampling(seed=6, max_steps=6)),
    ]
    for request in variants:
        eng.add(request)
    outcomes = run(eng)
    waveforms = [outcomes[str(index)].waveform for index in range(5)]
    np.testing.assert_allclose(waveforms[0], waveforms[1], atol=TOLERANCE)
    for other in waveforms[2:]:
        assert np.abs(waveforms[0] - other).max() > 100 * TOLERANCE


def test_stop_ends_a_stream_only_after_min_steps(alone):
    request = next(r for r in mixed_requests() if alone[r.id].finished.reason == "stop")
    stopped = alone[request.id].finished.steps
    eng = engine()
    longer = replace(request.sampling, min_steps=stopped + 3, max_steps=stopped + 20)
    eng.add(replace(request, sampling=longer))
    assert finished(run(eng)[request.id]).steps >= stopped + 5


def test_cancel_frees_slot_and_pages_at_once_and_ends_all_results():
    eng = engine(slots=2)
    for request in mixed_requests(4):
        eng.add(request)
    outcomes = defaultdict(Outcome)
    for _ in range(3):
        collect(outcomes, eng.step())
    received = {name: len(outcome.audio) for name, outcome in outcomes.items()}
    for request in mixed_requests(4):
        eng.cancel(request.id)
    assert at_rest(eng)
    collect(outcomes, eng.step())
    assert {name: len(outcome.audio) for name, outcome in outcomes.items()} == received
    assert not eng.busy and eng.stats().cancelled == 4
    eng.cancel("r0")  # a second cancel has no effect
    assert eng.stats().cancelled == 4


@pytest.fixture(scope="module")
def crowded():
    return engine(slots=3, kv_positions=256)


@settings(max_examples=4)
@given(rng=st.randoms(use_true_random=False))
def test_any_mix_of_arrivals_and_cancels_leaves_the_engine_empty(crowded, rng):
    eng = crowded
    requests = [replace(request, id=f"{request.id}-{rng.random()}") for request in mixed_requests()]
    added = []
    for _ in range(40):
        if requests and rng.random() < 0.4:
            added.append(requests.pop())
            eng.add(added[-1])
        if added and rng.random() < 0.3:
            eng.cancel(rng.choice(added).id)
        eng.step()
    for request in added:
        eng.cancel(request.id)
    while eng.busy:
        eng.step()
    assert at_rest(eng)


@pytest.fixture
def lagging(monkeypatch):
    """Frames are available after the launch has returned, as on a GPU."""
    monkeypatch.setattr("voxcpm_grpc.engine.runner.HostCopy", Lagging)


def brief(name, steps):
    return Request(id=name, text="Hello.", sampling=Sampling(min_steps=steps, max_steps=steps, inference_timesteps=4))


def test_a_round_is_launched_before_the_audio_of_the_previous_one_is_returned(lagging):
    eng = engine()
    launched = watch_launches(eng)
    eng.add(brief("a", 4))
    received = []
    while eng.busy:
        for _, event in eng.step():
            if isinstance(event, AudioChunk):
                received.append((event.index, len(launched)))
    assert received == [(0, 2), (1, 3), (2, 4), (3, 4)]


def test_a_request_added_during_a_round_is_in_the_next_one(lagging):
    eng = engine()
    launched = watch_launches(eng)
    eng.add(brief("early", 3))
    eng.step()  # the first part of the round
    eng.step()  # the second part
    eng.collect()
    [early] = eng.scheduler.running
    early.plays_until += HANG_SECONDS  # the host may be slower than its listener
    eng.add(brief("late", 3))
    events = eng.step()
    assert [sequence.id for sequence in launched[1].steps] == ["late"]  # the other is ahead of its playback
    assert [(id, type(event)) for id, event in events] == [("late", Admitted), ("early", AudioChunk)]
    eng.step()
    assert [(id, event.index) for id, event in eng.step() if isinstance(event, AudioChunk)] == [("late", 0)]


@pytest.mark.parametrize(("beside", "shared"), [(5, True), (6, False)])
def test_a_model_says_beside_how_many_streams_new_ones_get_a_round_of_their_own(monkeypatch, beside, shared):
    monkeypatch.setattr(VoxCPM, "separate_beside", beside)
    eng = engine(slots=16)
    launched = watch_launches(eng)
    for number in range(6):
        eng.add(brief(f"old {number}", 60))
    while len(launched) < 12:
        eng.step()
    for sequence in eng.scheduler.running:
        sequence.plays_until += HANG_SECONDS  # the host may be slower than the listeners
    eng.add(brief("new", 3))
    while not any(sequence.id == "new" for sequence in launched[-1].steps):
        eng.step()
    assert len(launched[-1].steps) == (7 if shared else 1)


def test_a_request_cancelled_during_its_round_has_no_further_steps_or_results(lagging):
    eng = engine()
    launched = watch_launches(eng)
    for request in (brief("gone", 1), brief("cancelled", 5), brief("stays", 5)):
        eng.add(request)
    eng.step()
    eng.step()
    eng.collect()
    eng.cancel("gone")  # its only step has run
    eng.cancel("cancelled")
    results = [id for id, _ in eng.step()]
    assert [sequence.id for sequence in launched[-1].steps] == ["stays"]
    while eng.busy:
        results += [id for id, _ in eng.step()]
    assert set(results) == {"stays"} and at_rest(eng)


@pytest.mark.parametrize("slots", [2, 8])
def test_a_stream_that_has_ended_has_no_further_steps(lagging, alone, slots):
    eng = engine(slots=slots, kv_positions=400)
    launched = watch_launches(eng)
    for request in mixed_requests():
        eng.add(request)
    outcomes = run(eng)
    for name, expected in alone.items():
        assert_same(outcomes[name], expected)
    assert {finished(outcome).reason for outcome in outcomes.values()} == {"stop", "max_steps"}
    made = sum(finished(outcome).steps for outcome in outcomes.values())
    assert sum(len(work.steps) for work in launched) == made and at_rest(eng)


def test_a_paused_stream_does_not_delay_others(alone):
    eng = engine()
    slow, fast = mixed_requests(2)
    eng.add(slow, limit=2)
    eng.add(fast)
    outcomes = run(eng)
    assert len(outcomes[slow.id].audio) == 2 and outcomes[slow.id].finished is None
    assert_same(outcomes[fast.id], alone[fast.id])
    total = outcomes[slow.id]
    while total.finished is None:
        eng.allow(slow.id, len(total.audio) + 3)
        while eng.busy:
            collect(outcomes, eng.step())
    assert_same(total, alone[slow.id])
    assert at_rest(eng)


def test_a_limit_that_comes_again_or_late_changes_nothing():
    eng = engine()
    eng.add(Request(id="a", text="Hello.", sampling=Sampling(min_steps=20, max_steps=20)), limit=4)
    for limit in (6, 6, 2):
        eng.allow("a", limit)
    assert not eng.paused("a")
    assert len(run(eng)["a"].audio) == 6
    assert eng.paused("a") and not eng.busy


def test_a_stream_with_audio_that_is_not_finite_ends_alone(alone):
    noise = torch.randn(64, 8, 4)
    noise[3] = torch.inf
    eng = engine(noise=noise)
    eng.add(Request(id="broken", text="Hello.", sampling=Sampling(max_steps=9)))
    eng.add(Request(id="short", text="Hello, world.", sampling=Sampling(max_steps=3)))
    outcomes = run(eng)
    assert isinstance(outcomes["broken"].error, Internal) and len(outcomes["broken"].audio) == 3
    assert "finite" not in outcomes["broken"].error.message
    assert finished(outcomes["short"]).steps == 3 and at_rest(eng)


def raising(error, when=lambda *_: True, otherwise=lambda *_, **__: None):
    def broken(*arguments, **options):
        if when(*arguments):
            raise error
        return otherwise(*arguments, **options)

    return broken


def test_a_failed_step_ends_its_requests_and_later_ones_succeed(alone, monkeypatch):
    eng = engine()
    request = mixed_requests(2)[1]
    eng.add(request)
    eng.step()
    with monkeypatch.context() as patch:
        patch.setattr(eng.model, "decode", raising(RuntimeError("launch failed at /secret/path")))
        outcome = run(eng)[request.id]
    assert isinstance(outcome.error, Unavailable) and "secret" not in outcome.error.message
    assert at_rest(eng)
    eng.add(request)
    assert_same(run(eng)[request.id], alone[request.id])


def test_a_failed_prefill_ends_its_request_alone(alone, monkeypatch):
    """Other streams are running, and other requests are in the same round as the poisoned one."""
    eng = engine()
    early, late = mixed_requests(6)[:3], mixed_requests(6)[3:]
    for request in early:
        eng.add(request)
    outcomes = defaultdict(Outcome)
    for _ in range(5):
        collect(outcomes, eng.step())
    poison = np.full((13, 4, 8), 1234.5, np.float32)
    poisoned = Request(id="poisoned", text="Hello.", conditioning=Conditioning(reference=voice_part(poison)))
    for request in (*late[:1], poisoned, *late[1:]):
        eng.add(request)

    def is_poisoned(slot, patch, state):
        return bool((state.model.history[slot, patch] == 1234.5).any())

    encode = eng.model.encode
    monkeypatch.setattr(eng.model, "encode", raising(ValueError("a secret"), is_poisoned, encode))
    while eng.busy:
        collect(outcomes, eng.step())
    error = outcomes.pop("poisoned").error
    assert isinstance(error, Internal) and "secret" not in error.message
    assert outcomes.keys() == {request.id for request in (*early, *late)}
    for name, outcome in outcomes.items():
        assert_same(outcome, alone[name])
    assert at_rest(eng) and eng.stats().failed == 1


@pytest.mark.parametrize("error", [MemoryError("no room"), torch.OutOfMemoryError("no room on the device")])
@pytest.mark.parametrize("where", ["prefill", "decode"])
def test_an_engine_without_memory_fails_at_once(monkeypatch, error, where):
    eng = engine()
    eng.add(Request(id="a", text="Hello."))
    monkeypatch.setattr(eng.model, where, raising(error))
    with pytest.raises(type(error)):
        run(eng)


def test_an_engine_fails_after_repeated_faults_of_its_device(monkeypatch):
    eng = engine()
    monkeypatch.setattr(eng.model, "prefill", raising(RuntimeError("device lost")))
    for name in "abc":
        eng.add(Request(id=name, text="Hello."))
        if name < "c":
            assert isinstance(run(eng)[name].error, Internal)
    with pytest.raises(RuntimeError, match="lost"):
        eng.step()


@pytest.mark.parametrize("options", [{}, {"slots": 1, "max_queue": 0}, {"kv_positions": 160}])
def test_warm_up_changes_neither_stats_nor_speech(alone, options):
    eng = engine(**options)
    fresh = eng.stats()
    assert eng.warm_up() > 0
    assert eng.stats() == fresh and at_rest(eng) and not eng.busy
    request = mixed_requests(2)[1]
    eng.add(request)
    assert_same(run(eng)[request.id], alone[request.id])


def test_a_deleted_engine_is_freed_at_once():
    """It must not need the garbage collector, which on a GPU could run during the capture of another engine."""
    eng = engine()
    eng.add(mixed_requests()[0])
    eng.encode("enc", np.zeros(16000, np.float32), Role.REFERENCE)
    run(eng)
    gc.collect()
    gc.disable()
    try:
        parts = [weakref.ref(part) for part in (eng, eng.runner, eng.model, eng.model.codec)]
        del eng
        assert not any(part() for part in parts)
    finally:
        gc.enable()


def test_requests_leave_nothing_to_the_garbage_collector():
    eng = engine(slots=2, kv_positions=400)

    def work() -> None:
        for request in mixed_requests(4):
            eng.add(request)
        eng.encode("enc", np.zeros(16000, np.float32), Role.REFERENCE)
        eng.decode("dec", {"latents": voice(3, 9)})
        with pytest.raises(InvalidRequest):
            eng.add(Request(id="long", text="x" * 5000))
        outcomes = defaultdict(Outcome)
        for _ in range(5):
            collect(outcomes, eng.step())
        eng.cancel("r0")
        eng.cancel("dec")
        run(eng, outcomes=outcomes)

    work()
    with no_garbage():
        work()
