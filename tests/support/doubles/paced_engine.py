"""A scheduler on a made-up clock: its rounds take the time of their work, and readers take the audio at their pace."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from support.engines.schedulers import STEP_SECONDS, scheduler, sequence

from voxcpm_grpc.engine.scheduling.round import Round
from voxcpm_grpc.engine.scheduling.sequence import Sequence
from voxcpm_grpc.request import RISE_CHUNKS

WINDOW_CHUNKS = 187  # 30 s of audio
BUFFERED = 4  # chunks that reach a reader who takes nothing


@dataclass(frozen=True)
class Cost:
    """Seconds of a round, of each stream in it, and of each position that it prefills."""

    round: float
    stream: float
    position: float


CPU = Cost(0.017, 0.0136, 0.0004)  # the demo voice on two cores: eight streams are made 1.2 times as fast as they play
GPU = Cost(0.0027, 0.00015, 0.000006)


@dataclass(eq=False)
class Reader:
    """A stream and its reader, who takes `pace` seconds of audio a second: math.inf at once, 0.0 nothing.

    times: the moment at which each chunk was made
    """

    name: str
    arrives: float
    steps: int
    pace: float = math.inf
    lead_seconds: float = 0.0  # of audio of its stream before
    batch: bool = False
    times: list[float] = field(default_factory=list)
    sequence: Sequence = field(init=False)

    def __post_init__(self) -> None:
        self.sequence = sequence(
            self.name, 60, self.steps, WINDOW_CHUNKS, continues=self.lead_seconds > 0, batch=self.batch
        )
        request = replace(self.sequence.request, lead_seconds=self.lead_seconds)
        self.sequence = replace(self.sequence, request=request, queued_at=self.arrives)

    @property
    def wait(self) -> float:
        """Seconds until the first audio."""
        return self.times[0] - self.arrives

    @property
    def gaps(self) -> float:
        """Seconds in which the reader had nothing to take, but would have taken something."""
        each = STEP_SECONDS / min(1.0, self.pace) if self.pace else math.inf
        ends = missed = 0.0
        for before, now in pairwise(self.times):
            ends = max(ends, before) + each
            missed += max(0.0, now - ends)
        return missed

    def take(self, now: float) -> None:
        """Raise the limit by the chunks that were taken, in parts as a front does."""
        taken = len(self.times)
        if taken and self.pace < math.inf:
            taken = min(taken, int((now - self.times[0]) * self.pace / STEP_SECONDS) + BUFFERED)
        if (limit := WINDOW_CHUNKS + taken) - self.sequence.limit >= RISE_CHUNKS:
            self.sequence.allow(limit, STEP_SECONDS, now)


class PacedEngine:
    """Runs streams to their end. `rounds` has the rounds, with the number of streams that could have been in each."""

    def __init__(self, cost: Cost, slots: int) -> None:
        self.scheduler = scheduler(slots=slots, pages=10**4, budget=256, max_queue=1000, max_len=4096)
        self.now = 0.0
        self.rounds: list[tuple[Round, int]] = []
        self._cost = cost

    def run(self, readers: Iterable[Reader], seconds: float = 600.0) -> None:
        """Run until all streams have ended, except those of readers who take nothing."""
        coming, present = sorted(readers, key=lambda reader: reader.arrives), list[Reader]()
        while coming or any(reader.pace for reader in present):
            assert self.now < seconds, f"{[reader.name for reader in present]} do not end"
            while coming and coming[0].arrives <= self.now:
                self.scheduler.add(coming[0].sequence)
                present.append(coming.pop(0))
            for reader in present:
                reader.take(self.now)
            if self.scheduler.runnable:
                self._round({reader.sequence: reader for reader in present})
                present = [reader for reader in present if len(reader.times) < reader.steps]
            else:
                self.now += 0.01

    def _round(self, readers: dict[Sequence, Reader]) -> None:
        ready = sum(one.prefilled and one.can_step for one in self.scheduler.running)
        work = self.scheduler.schedule(self.now)
        self.rounds.append((work, ready))
        cost = self._cost
        self.now += cost.round + cost.stream * len(work.steps) + cost.position * self.scheduler.prefilled
        for one in work.steps:
            one.delivered += 1
            one.on_audio(STEP_SECONDS, self.now)
            readers[one].times.append(self.now)
            if one.delivered == one.max_steps:
                self.scheduler.remove(one)
