"""Requests that are cancelled, moved, held up and broken on their way through an engine."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

from support.engines.tiny import Outcome, at_rest, collect, run

from voxcpm_grpc.engine.engine import Engine, Result
from voxcpm_grpc.errors import Unavailable
from voxcpm_grpc.events import Admitted, AudioChunk, History
from voxcpm_grpc.request import Request

MOST_FAULTS = 2  # in a row; an engine is lost after one more
EVENTFUL_ROUNDS = 20  # for each request; later ones have no event


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
    """Let the third launch and this share of all fail, before or after their work; none if it is 0.

    Returns the names of those that do.
    """
    failed: list[str] = []
    launches = in_a_row = 0

    def breaking(name: str, launch: Any) -> Any:
        def call(*args):
            nonlocal launches, in_a_row
            launches += 1
            if in_a_row < MOST_FAULTS and share and (launches == 3 or draws.random() < share):
                if draws.random() < 0.5:
                    launch(*args)
                in_a_row += 1
                failed.append(name)
                raise RuntimeError(name)
            result = launch(*args)
            in_a_row = 0 if name == "advance" else in_a_row
            return result

        return call

    eng.runner.launch = breaking("launch", eng.runner.launch)
    eng.runner.advance = breaking("advance", eng.runner.advance)
    return failed


def disturb(eng: Engine, requests: list[Request], draws: random.Random) -> dict[str, Outcome]:
    """Run requests that are cancelled and added again, with limits and words that come one by one.

    Those whose launch fails are added again, too. All finish.
    """
    front, rounds = Front(eng, requests), 0
    while not front.is_done:
        rounds += 1
        assert rounds < 100 * EVENTFUL_ROUNDS, "the engine makes no progress"
        if rounds > EVENTFUL_ROUNDS * len(requests):
            front.hurry(draws)
        else:
            front.step(draws)
    run(eng)
    assert at_rest(eng)
    return front.outcomes
