"""A stream goes on in another engine from its history, and none of what it gives differs."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.engines.tiny import Outcome, at_rest, collect, engine, finished, latents, mixed_requests, run
from support.engines.toy_engines import asks, check, toy_engine

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.errors import Internal
from voxcpm_grpc.events import NOT_SPOKEN, Admitted, AudioChunk, FinishReason, History
from voxcpm_grpc.request import Request

TOLERANCE = 1e-4
LAST_STEPS = 11


class Front:
    """Keeps what comes of requests, and moves them from engine to engine."""

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.outcomes: dict[str, Outcome] = defaultdict(Outcome)
        self.chunks: dict[str, list[AudioChunk]] = defaultdict(list)

    @property
    def open(self) -> list[Request]:
        return [request for request in self.requests if self.outcomes[request.id].finished is None]

    def move(self, eng: Engine) -> None:
        """Let an engine continue all requests that have not finished."""
        for request in self.open:
            eng.add(request, history=self.history(request.id))

    def history(self, id: str) -> History | None:
        if not (chunks := self.chunks[id]):
            return None
        return History(steps=b"".join(chunk.steps for chunk in chunks), chunks=len(chunks), silent=chunks[-1].silent)

    def run(self, eng: Engine, steps: int = -1) -> None:
        """Run an engine for so many steps, or to the end of all requests."""
        while eng.busy and steps:
            results = eng.step()
            for id, event in results:
                if isinstance(event, AudioChunk):
                    self.chunks[id].append(event)
            collect(self.outcomes, [(id, event) for id, event in results if not isinstance(event, Admitted)])
            steps -= 1


def undisturbed(make: Callable[[], Engine], requests: list[Request]) -> dict[str, Outcome]:
    eng = make()
    for request in requests:
        eng.add(request)
    return run(eng)


@pytest.fixture(scope="module")
def whole() -> dict[str, Outcome]:
    return undisturbed(engine, mixed_requests())


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (1, 2))])
def test_the_audio_and_the_speech_are_those_of_one_engine(whole, seed):
    draw, front = random.Random(seed), Front(mixed_requests())
    while front.open:
        eng = engine(prefill_tokens=draw.choice((None, 7)), slots=draw.choice((3, 8)))
        front.move(eng)
        front.run(eng, draw.randrange(1, 16))
    for id, expected in whole.items():
        outcome, end = front.outcomes[id], finished(expected)
        np.testing.assert_allclose(outcome.waveform, expected.waveform, atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(latents(outcome), latents(expected), atol=TOLERANCE, rtol=0)
        moved = finished(outcome)
        assert (moved.steps, moved.reason, moved.ran_on) == (end.steps, end.reason, end.ran_on)


def test_each_step_can_be_the_last_one_of_an_engine(whole):
    """All streams that go on share an engine, which has as many slots."""
    requests = [mixed_requests()[number] for number in (2, 4)]
    front, first, second = Front(requests), engine(), engine(slots=2 * LAST_STEPS)
    front.move(first)
    moved: list[Request] = []
    for steps in range(1, LAST_STEPS + 1):
        front.run(first, 1)
        for request in front.open:
            moved.append(replace(request, id=f"{request.id} after {steps}"))
            front.chunks[moved[-1].id] = [*front.chunks[request.id]]
            front.outcomes[moved[-1].id].audio = [*front.outcomes[request.id].audio]
            second.add(moved[-1], history=front.history(request.id))
    assert len(moved) > LAST_STEPS, "both streams go on for some steps"
    front.run(second)
    for request in moved:
        expected = whole[request.id.partition(" ")[0]]
        np.testing.assert_allclose(front.outcomes[request.id].waveform, expected.waveform, atol=TOLERANCE, rtol=0)
    assert at_rest(second)


def test_a_family_that_is_unlike_voxcpm_goes_on_the_same_way():
    requests = asks(8)
    for seed in range(4):
        draw, front = random.Random(seed), Front(requests)
        while front.open:
            eng = toy_engine(slots=draw.choice((2, 8)), prefill_tokens=5)
            front.move(eng)
            front.run(eng, draw.randrange(1, 12))
        for request in requests:
            check(request, front.outcomes[request.id], toy_engine())


def test_streams_that_go_on_are_preempted_and_swapped_out():
    requests = asks(8, least=30)
    front, first = Front(requests), toy_engine()
    front.move(first)
    front.run(first, 12)
    small = toy_engine(slots=4, kv_positions=96, prefill_tokens=16)
    front.move(small)
    front.run(small)
    for request in requests:
        check(request, front.outcomes[request.id], small)
    assert small.stats().preemptions > 0 and at_rest(small)


def test_silence_counts_from_one_engine_to_the_next(monkeypatch):
    """The chunk that is silent for the last time that the request allows is the same."""
    monkeypatch.setattr("voxcpm_grpc.engine.scheduling.sequence.SILENCE_RMS", 1e9)
    request = replace(mixed_requests()[0], id="silent")
    request = replace(request, sampling=replace(request.sampling, max_silent_steps=4, min_steps=10))
    front, first, second = Front([request]), engine(), engine()
    front.move(first)
    front.run(first, 4)
    made = front.history("silent")
    assert made is not None and made.silent == NOT_SPOKEN
    second.add(request, history=History(steps=made.steps, chunks=made.chunks, silent=2))
    front.run(second)
    outcome = front.outcomes["silent"]
    assert finished(outcome).reason is FinishReason.SILENCE
    assert len(outcome.audio) == made.chunks + 2


def test_the_limit_counts_the_chunks_of_both_engines():
    [request] = mixed_requests(1)
    front, first, second = Front([request]), engine(), engine()
    first.add(request, 3)
    front.run(first)
    assert first.paused(request.id) and len(front.chunks[request.id]) == 3
    second.add(request, 3, front.history(request.id))
    front.run(second)
    assert second.paused(request.id) and not second.stats().steps
    second.allow(request.id, 5)
    front.run(second)
    assert len(front.chunks[request.id]) == 5


def test_the_last_chunk_says_so():
    front, eng = Front(mixed_requests()), engine()
    front.move(eng)
    front.run(eng)
    for chunks in front.chunks.values():
        assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@pytest.mark.parametrize("history", [History(steps=b"abc", chunks=1), History(steps=bytes(8), chunks=2)])
def test_a_history_that_does_not_fit_is_refused(history):
    eng = toy_engine()
    with pytest.raises(Internal):
        eng.add(asks(1)[0], history=history)
    assert at_rest(eng)
