"""Measure the engine alone while streams come and go.

    python -m benchmarks.engine.turnover --model DIR --users 16,64 --min-steps 20
    python -m benchmarks.engine.turnover --model DIR --users "" --rates 60,80 --requests 2000 --steps 60

Users each ask again as soon as they have an answer, or requests arrive at random (Poisson), as in the closed and the
open loop of `benchmarks.serving`, but without gRPC, fronts and other processes. With --min-steps, lengths are drawn
from there to --steps. Every text differs from all others in its first word, so that no prefix of texts is cached. The
time to first audio counts from when a request was due, and so does the wait for a slot. A gap is the time between two
chunks of a stream.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import count, pairwise
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np
import torch

from benchmarks.engine.requests import requests
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser, floats
from benchmarks.measuring.statistics import late, quantile
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.events import Admitted, AudioChunk, Finished
from voxcpm_grpc.request import Request
from voxcpm_grpc.settings.engine import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One load. A stream is late if playback that begins with its first chunk runs out of audio."""

    loop: str  # closed or open
    level: float  # users, or requests a second
    requests: int
    ttfb_p50_ms: float
    ttfb_p95_ms: float
    ttfb_p99_ms: float
    slot_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    late_streams: int
    audio_s_per_s: float


class Load(Protocol):
    """Requests that become due over time. Times are in seconds since the load began."""

    def take(self, now: float) -> list[tuple[float, Request]]:
        """The requests that are due, with the times from which they were."""
        ...

    def next_due(self) -> float:
        """The time of the next request; infinite if it depends on an answer, or if there is none."""
        ...

    def on_end(self, now: float) -> None:
        """An answer has ended."""
        ...

    @property
    def ended(self) -> bool:
        """True if enough answers have ended."""
        ...


@dataclass(slots=True)
class Users:
    """Each asks again as soon as its answer has ended, until `left` answers have."""

    asked: Iterator[Request]
    users: int
    left: int
    due: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.due = [0.0] * self.users

    def take(self, now: float) -> list[tuple[float, Request]]:
        due, self.due = self.due, []
        return [(since, next(self.asked)) for since in due]

    def next_due(self) -> float:
        return min(self.due, default=float("inf"))

    def on_end(self, now: float) -> None:
        self.left -= 1
        self.due.append(now)

    @property
    def ended(self) -> bool:
        return self.left <= 0


@dataclass(slots=True)
class Arrivals:
    """Random arrivals at these times, the last one first."""

    asked: Iterator[Request]
    times: list[float]
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = len(self.times)

    def take(self, now: float) -> list[tuple[float, Request]]:
        due = []
        while self.times and self.times[-1] <= now:
            due.append((self.times.pop(), next(self.asked)))
        return due

    def next_due(self) -> float:
        return self.times[-1] if self.times else float("inf")

    def on_end(self, now: float) -> None:
        self.left -= 1

    @property
    def ended(self) -> bool:
        return self.left <= 0


@dataclass(slots=True)
class Answer:
    """The times of the events of one request."""

    due: float
    admitted: float = 0.0
    chunks: list[float] = field(default_factory=list)
    ended: bool = False


def serve(engine: Engine, load: Load) -> tuple[list[Answer], float]:
    """Serve a load. Returns all answers and the seconds that it took. Streams that are then left are cancelled."""
    answers: dict[str, Answer] = {}
    began = perf_counter()
    while not load.ended:
        engine.collect()
        for due, request in load.take(perf_counter() - began):
            answers[request.id] = Answer(due)
            engine.add(request)
        if not engine.busy:
            time.sleep(max(0.0, load.next_due() - (perf_counter() - began)))
            continue
        results = engine.step()
        now = perf_counter() - began
        for id, event in results:
            match event:
                case Admitted():
                    answers[id].admitted = now
                case AudioChunk():
                    answers[id].chunks.append(now)
                case Finished():
                    answers[id].ended = True
                    load.on_end(now)
                case _:
                    raise RuntimeError(f"stream {id}: {event}")
    seconds = perf_counter() - began
    for id in [id for id, one in answers.items() if not one.ended]:
        engine.cancel(id)
    while engine.busy:
        engine.step()
    return list(answers.values()), seconds


def row(loop: str, level: float, answers: list[Answer], seconds: float, step_seconds: float) -> Row:
    """The row of a load, from all its answers. step_seconds: audio of a chunk."""
    ended = [one for one in answers if one.ended]
    first = sorted(one.chunks[0] - one.due for one in ended)
    slot = sorted(one.admitted - one.due for one in ended)
    gaps = sorted(b - a for one in ended for a, b in pairwise(one.chunks))
    return Row(
        loop=loop,
        level=level,
        requests=len(ended),
        **{f"ttfb_p{p}_ms": quantile(first, p / 100) * 1e3 for p in (50, 95, 99)},
        slot_p99_ms=quantile(slot, 0.99) * 1e3,
        gap_p50_ms=quantile(gaps, 0.5) * 1e3,
        gap_p99_ms=quantile(gaps, 0.99) * 1e3,
        late_streams=sum(late(one.chunks, [step_seconds] * len(one.chunks)) for one in ended),
        audio_s_per_s=sum(len(one.chunks) for one in answers) * step_seconds / seconds,
    )


def endless_requests(first: int, options: argparse.Namespace) -> Iterator[Request]:
    """Requests with texts that are numbered from `first` on."""
    draw, least = np.random.default_rng(first), options.min_steps or options.steps
    shape = {"timesteps": options.timesteps, "chars": options.chars, "speaker": options.speaker}
    for serial in count(first):
        yield from requests(serial, 1, steps=int(draw.integers(least, options.steps, endpoint=True)), **shape)


HEADINGS = (
    f"{'loop':>7} {'level':>6} {'TTFB p50':>9} {'p95':>8} {'p99':>8} {'slot p99':>9} {'gap p50':>9} {'p99':>8}"
    f" {'audio-s/s':>9} {'late':>5}"
)


def line(row: Row) -> str:
    """A row under HEADINGS."""
    return (
        f"{row.loop:>7} {row.level:6g} {row.ttfb_p50_ms:6.1f} ms {row.ttfb_p95_ms:5.1f} ms {row.ttfb_p99_ms:5.1f} ms"
        f" {row.slot_p99_ms:6.1f} ms {row.gap_p50_ms:6.2f} ms {row.gap_p99_ms:5.1f} ms {row.audio_s_per_s:9.1f}"
        f" {row.late_streams:5d}"
    )


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="demo", help="demo, a directory, or a hub repository id")
    parser.add_argument("--users", type=floats, default=[1, 4, 8], help='users of each closed loop; "" for none')
    parser.add_argument("--each", type=int, default=4, help="answers that each user waits for, on average")
    parser.add_argument("--rates", type=floats, default=[], help="requests a second of each open loop")
    parser.add_argument("--requests", type=int, default=500, help="requests of each open loop")
    parser.add_argument("--min-steps", type=int, help="steps of the shortest answer; default: all have --steps")
    parser.add_argument("--steps", type=int, default=50, help="steps of the longest answer")
    parser.add_argument("--timesteps", type=int, help="flow-matching steps; default: those of the model")
    parser.add_argument("--speaker", default="", help="a built-in voice of the model")
    parser.add_argument("--chars", type=int, default=60, help="characters of each text")
    parser.add_argument("--join-from", type=int, help="prompts join rounds of so many streams; default: the engine's")
    parser.add_argument("--slots", type=int, help="engine.max_slots; default: that of the device")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    return parser.parse_args()


def loads(asked: Iterator[Request], options: argparse.Namespace) -> Iterator[tuple[str, float, Load]]:
    """The kind and level of each load, with its requests."""
    for users in map(int, options.users):
        yield "closed", users, Users(asked, users, users * options.each)
    draw = np.random.default_rng(0)
    for rate in options.rates:
        times = np.cumsum(draw.exponential(1 / rate, options.requests))[::-1].tolist()
        yield "open", rate, Arrivals(asked, times)


def main() -> None:
    options = parsed()
    settings = EngineSettings(device=options.device, max_slots=options.slots, compile="off")
    if options.timesteps is not None:
        settings = settings.model_copy(update={"timesteps": (options.timesteps,)})
    engine = load_engine(resolve(options.model), options.model, settings)
    if options.join_from is not None:
        engine.join_from = options.join_from
    step_seconds = engine.info.step_seconds
    rows, asked = [], endless_requests(0, options)
    print(HEADINGS)
    with torch.inference_mode():
        serve(engine, Users(asked, engine.info.max_slots, engine.info.max_slots))
        for loop, level, load in loads(asked, options):
            rows.append(row(loop, level, *serve(engine, load), step_seconds))
            print(line(rows[-1]), flush=True)
    if options.json:
        table = {"command": command(), "versions": versions("torch", "triton"), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
