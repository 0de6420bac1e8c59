"""Streams whose audio is read after the launch of the next round, when anything happens to them in between."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

import pytest
from support.engines.tiny import Lagging, Outcome, at_rest, collect, finished, run
from support.engines.toy_engines import asks, check, check_all, toy_engine
from support.engines.toy_family import Toy

from voxcpm_grpc.engine.engine import Engine, Result
from voxcpm_grpc.errors import Unavailable
from voxcpm_grpc.request import Admitted, AudioChunk, History, Priority, Request, Sampling

MOST_FAULTS = 2  # in a row; an engine is lost after one more
EVENTS = 20


@pytest.fixture(autouse=True, params=[False, True], ids=["audio in time", "late audio"])
def _late_audio(request, monkeypatch):
    """Nothing reaches the host before something waits for it, as on a busy GPU."""
    monkeypatch.setattr("voxcpm_grpc.engine.runner.HostCopy", Lagging)
    monkeypatch.setattr(Toy, "late_audio", request.param)


class Front:
    """Requests of one engine, and what has come of them. It cancels them, and lets them go on behind their chunks.

    Those that are open get their text word by word.
    """

    def __init__(self, eng: Engine, requests: list[Request]) -> None:
        self.eng = eng
        self.waiting = [*requests]
        self.given: dict[str, Request] = {}  # to the engine, which has not ended them
        self.outcomes: dict[str, Outcome] = defaultdict(Outcome)
        self.chunks: dict[str, list[AudioChunk]] = defaultdict(list)
        self.unsent = {ask.id: ask.text.split()[1:] if ask.open else [] for ask in requests}

    @property
    def is_done(self) -> bool:
        return not (self.waiting or self.given)

    def take(self, results: list[Result]) -> None:
        for id, event in results:
            assert id in self.given, "a result follows the end of its request"
            if isinstance(event, Unavailable):  # a step has failed
                self._wait_again(id)
            elif not isinstance(event, Admitted):
                if isinstance(event, AudioChunk):
                    self.chunks[id].append(event)
                collect(self.outcomes, [(id, event)])
                if self.outcomes[id].finished:
                    del self.given[id]

    def step(self, draws: random.Random) -> None:
        """Run a round, with events before, during and after its wait."""
        for act in (self.eng.collect, lambda: self.take(self.eng.step()), lambda: None):
            if draws.random() < 0.4:
                self.add(draws)
            if self.given and draws.random() < 0.1:
                self.move(draws.choice([*self.given]))
            if self.given and draws.random() < 0.5:
                id = draws.choice([*self.given])
                self.eng.allow(id, len(self.chunks[id]) + draws.randrange(1, 9))
                self.append(id)
            act()

    def add(self, draws: random.Random) -> None:
        """Give a request to the engine, often with a low limit."""
        if self.waiting:
            request = self.waiting.pop(draws.randrange(len(self.waiting)))
            made = self.chunks[request.id]
            steps = b"".join(chunk.steps for chunk in made)
            history = History(steps=steps, chunks=len(made), silent=made[-1].silent) if made else None
            self.given[request.id] = request
            rest = self.unsent[request.id]
            text = request.text.removesuffix(" ".join(rest))
            self.eng.add(
                replace(request, text=text, open=bool(rest)), len(made) + draws.choice((1, 3, 1 << 40)), history
            )

    def append(self, id: str) -> None:
        """Give the engine the next word of a text, if there is one."""
        if rest := self.unsent[id]:
            word = rest.pop(0)
            self.eng.append(id, f"{word} " if rest else word, last=not rest)

    def move(self, id: str) -> None:
        """Cancel a request, which goes on later, as in a drain."""
        self.eng.cancel(id)
        self._wait_again(id)

    def _wait_again(self, id: str) -> None:
        """The last chunk of a stream is not kept: another engine makes it again, and ends."""
        if self.chunks[id] and self.chunks[id][-1].last:
            self.chunks[id].pop()
            self.outcomes[id].audio.pop()
        self.waiting.append(self.given.pop(id))

    def hurry(self, draws: random.Random) -> None:
        """Let all streams go on without more events."""
        self.add(draws)
        for id in self.given:
            self.eng.allow(id, 1 << 40)
            self.append(id)
        self.take(self.eng.step())


def break_launches(eng: Engine, draws: random.Random, share: float) -> list[str]:
    """Let this share of the launches fail, before or after their work. Returns the names of those that do."""
    failed: list[str] = []
    in_a_row = 0

    def breaking(name, launch):
        def call(*args):
            nonlocal in_a_row
            if in_a_row == MOST_FAULTS or draws.random() >= share:
                result = launch(*args)
                in_a_row = 0 if name == "advance" else in_a_row
                return result
            if draws.random() < 0.5:
                launch(*args)
            in_a_row += 1
            failed.append(name)
            raise RuntimeError(name)

        return call

    eng.runner.launch = breaking("launch", eng.runner.launch)
    eng.runner.advance = breaking("advance", eng.runner.advance)
    return failed


def disturb(seed: int, share_of_faults: float) -> list[str]:
    """Run streams that are cancelled, moved, held up and broken; none of them gives anything else than undisturbed."""
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
    front, failed = Front(eng, requests), break_launches(eng, draws, share_of_faults)
    rounds = 0
    while not front.is_done:
        rounds += 1
        assert rounds < 3000, "the engine makes no progress"
        if rounds > EVENTS * len(requests):
            front.hurry(draws)
        else:
            front.step(draws)
    for request in requests:
        check(replace(request, open=False), front.outcomes[request.id], eng, cut=request.open)
    run(eng)
    assert at_rest(eng)
    return failed


@pytest.mark.parametrize("seed", range(4))
def test_streams_that_are_cancelled_at_any_time_go_on_as_they_were(seed):
    disturb(seed, 0.0)


@pytest.mark.parametrize("seed", range(4))
def test_streams_of_launches_that_fail_go_on_as_they_were(seed):
    assert disturb(seed, 0.08)


@pytest.mark.thorough
@pytest.mark.nightly
def test_streams_that_anything_happens_to_go_on_as_they_were():
    for seed in range(100, 160):
        disturb(seed, 0.0 if seed % 2 else 0.1)


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
