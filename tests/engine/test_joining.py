"""Prompts that join the language models of a round give the same speech as prompts with a prefill of their own."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from support.engines.tiny import (
    Lagging,
    Outcome,
    at_rest,
    collect,
    engine,
    finished,
    latents,
    mixed_requests,
    run,
    run_arriving,
    watch_joins,
    watch_launches,
)
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.errors import Internal
from voxcpm_grpc.events import Admitted, AudioChunk
from voxcpm_grpc.request import Request, Sampling

pytestmark = pytest.mark.thorough

TOLERANCE = 1e-4
NEVER = 1 << 30


def assert_same(outcomes: dict[str, Outcome], expected: dict[str, Outcome]) -> None:
    assert outcomes.keys() == expected.keys()
    for id, outcome in expected.items():
        assert finished(outcomes[id]).steps == finished(outcome).steps
        np.testing.assert_allclose(latents(outcomes[id]), latents(outcome), atol=TOLERANCE)
        np.testing.assert_allclose(outcomes[id].waveform, outcome.waveform, atol=TOLERANCE)


@pytest.fixture(scope="module")
def apart() -> dict[str, Outcome]:
    """The outcomes of an engine in which no prompt joins a round."""
    eng = engine()
    eng.join_from = NEVER
    joins = watch_joins(eng)
    outcomes = run_arriving(eng, mixed_requests())
    assert not joins
    return outcomes


def brief(id: str, steps: int) -> Request:
    return Request(id=id, text="Hello.", sampling=Sampling(min_steps=steps, max_steps=steps, inference_timesteps=4))


@pytest.mark.parametrize(
    ("options", "lags"),
    [
        ({}, False),
        ({}, True),
        ({"prefill_tokens": 12}, True),
        ({"kv_positions": 160}, False),
        ({"slots": 3}, True),
        ({"prefix_caching": False}, False),
    ],
)
def test_speech_is_the_same_with_and_without_joined_prompts(apart, options, lags, monkeypatch):
    if lags:
        monkeypatch.setattr("voxcpm_grpc.engine.runner.HostCopy", Lagging)
    eng = engine(**options)
    joins = watch_joins(eng)
    assert_same(run_arriving(eng, mixed_requests(), every=3 if lags else 2), apart)
    assert joins and at_rest(eng)
    if not options and not lags:
        assert {sequence.id for work in joins for sequence in work.opened} == {f"r{n}" for n in range(1, 8)}
        assert any(sequence.cached for work in joins for sequence in work.opened)


def test_a_prompt_longer_than_the_budget_joins_in_chunks_between_the_steps_of_others():
    eng = engine(prefill_tokens=16)
    launches, joins = watch_launches(eng), watch_joins(eng)
    eng.add(brief("first", 12))
    first = defaultdict(Outcome)
    collect(first, eng.step())
    eng.add(replace(brief("long", 3), text="x" * 60))
    outcomes = run(eng, outcomes=first)
    made = [chunk for work in [*joins, *launches] for chunk in work.chunks if chunk.sequence.id == "long"]
    chunks = sorted((chunk.start, chunk.stop) for chunk in made)
    assert [start for start, _ in chunks] == [0, *(stop for _, stop in chunks[:-1])]
    assert joins and len(chunks) > 3 and max(stop - start for start, stop in chunks) <= 16
    assert len(outcomes["first"].audio) == 12 and len(outcomes["long"].audio) == 3


def test_a_request_is_admitted_while_the_audio_of_a_round_is_decoded(monkeypatch):
    monkeypatch.setattr("voxcpm_grpc.engine.runner.HostCopy", Lagging)
    eng = engine()
    launches = watch_launches(eng)
    eng.add(brief("early", 9))
    eng.step()
    eng.collect()  # the patches are there
    [early] = eng.scheduler.running
    early.plays_until += HANG_SECONDS  # the host may be slower than its listener
    eng.add(brief("late", 9))
    assert [(id, type(event)) for id, event in eng.step()] == [("late", Admitted)]
    assert len(launches) == 1
    assert [(id, type(event)) for id, event in eng.step()] == [("early", AudioChunk)]
    assert [sequence.id for sequence in launches[1].steps] == ["late"]  # the other is ahead of its playback
    assert not launches[1].chunks


def test_a_stream_cancelled_in_its_round_leaves_its_slot_and_pages_to_a_prompt_that_joins(apart, monkeypatch):
    monkeypatch.setattr("voxcpm_grpc.engine.runner.HostCopy", Lagging)
    for index in range(8):
        eng = engine(slots=2, kv_positions=192)
        joins = watch_joins(eng)
        stays, joining = mixed_requests()[0], mixed_requests()[index]
        eng.add(replace(stays, id="stays"))
        eng.add(brief("cancelled", 9))
        outcomes: dict[str, Outcome] = defaultdict(Outcome)
        for _ in range(5):
            collect(outcomes, eng.step())
        eng.add(joining)
        eng.collect()
        eng.cancel("cancelled")
        del outcomes["cancelled"]
        run(eng, outcomes=outcomes)
        assert [sequence.id for sequence in joins[0].opened] == [joining.id]
        assert_same(outcomes, {"stays": apart[stays.id], joining.id: apart[joining.id]})


def test_streams_that_were_swapped_out_join_with_their_state(apart):
    eng = engine(slots=2)
    joins = watch_joins(eng)
    outcomes: dict[str, Outcome] = defaultdict(Outcome)
    for request in mixed_requests():
        eng.add(request, limit=4)
        run(eng, outcomes=outcomes)
    while unfinished := [id for id, outcome in outcomes.items() if outcome.finished is None]:
        for id in unfinished:
            eng.allow(id, len(outcomes[id].audio) + 4)
            collect(outcomes, eng.step())
        run(eng, outcomes=outcomes)
    assert any(work.restored for work in joins) or eng.stats().swaps
    assert_same(outcomes, apart)


def test_a_joined_prompt_whose_prefill_fails_ends_alone(apart, monkeypatch):
    eng = engine()
    poisoned, encode = mixed_requests()[1], eng.model.encode

    def encode_unless_poisoned(slot, patch, state, **options):
        slots = {s.slot for s in eng.scheduler.running if s.id == poisoned.id}
        if slots & set(slot.tolist()):
            raise ValueError("a secret")
        return encode(slot, patch, state, **options)

    monkeypatch.setattr(eng.model, "encode", encode_unless_poisoned)
    outcomes = run_arriving(eng, mixed_requests()[:3])
    failed = outcomes.pop(poisoned.id)
    assert isinstance(failed.error, Internal) and not failed.audio
    assert_same(outcomes, {id: apart[id] for id in ("r0", "r2")})
    assert at_rest(eng)


def test_a_round_with_joined_prompts_prefills_no_more_than_its_budget():
    eng = engine(prefill_tokens=40)
    eng.add(brief("first", 30))
    eng.step()
    launches, joins = watch_launches(eng), watch_joins(eng)
    for number in range(6):
        eng.add(replace(brief(f"{number}", 2), text=f"{number}" * 30))
    positions = [0]  # of each round
    while eng.busy:
        eng.step()
        for work in joins:  # they were launched before the next round
            positions[-1] += sum(chunk.stop - chunk.start for chunk in work.chunks)
        positions += [sum(chunk.stop - chunk.start for chunk in work.chunks) for work in launches]
        assert len(launches) <= 1
        joins.clear()
        launches.clear()
    assert 35 < max(positions) <= 40


class Generated:
    """The event after the patches of a device that runs beside the host."""

    def synchronize(self) -> None:
        pass


@pytest.mark.parametrize(("streams", "seconds", "waits"), [(3, 0.1, True), (3, 0.3, False), (2, 0.1, False)])
def test_language_models_wait_for_prompts_on_a_gpu_only_soon_after_an_arrival(streams, seconds, waits, monkeypatch):
    monkeypatch.setattr("voxcpm_grpc.engine.runner.HostCopy", Lagging)
    now = [100.0]
    monkeypatch.setattr("voxcpm_grpc.engine.engine.monotonic", lambda: now[0])
    eng = engine()
    eng.join_from = 3
    launch, advance, advanced = eng.runner.launch, eng.runner.advance, []
    monkeypatch.setattr(eng.runner, "launch", lambda work: replace(launch(work), generated=Generated()))
    monkeypatch.setattr(
        eng.runner, "advance", lambda steps, joined: (advanced.append(len(steps)), advance(steps, joined))
    )
    for number in range(streams):
        eng.add(brief(f"{number}", 3))
    now[0] += seconds
    eng.step()
    assert advanced == ([] if waits else [streams])
    eng.step()
    assert advanced[0] == streams
