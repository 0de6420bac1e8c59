"""Measure the engine alone while streams come and go: users who each ask again as soon as they have heard an answer.

    python -m benchmarks.engine.turnover --model DIR --users 16,64 --min-steps 20 --steps 88

A closed loop of `benchmarks.serving` without gRPC, fronts and other processes. The lengths are drawn from --min-steps
to --steps, and every text differs from all others in its first word, so that no prefix of texts is cached. The time to
first audio counts from the submission of a request. A gap is the time between two chunks of a stream.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from benchmarks.engine.requests import requests
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser, integers
from benchmarks.measuring.statistics import late, quantile
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.errors import VoxCPMError
from voxcpm_grpc.request import AudioChunk, Finished, Request
from voxcpm_grpc.settings.engine import EngineSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of users. A stream is late if playback that begins with its first chunk runs out of audio."""

    users: int
    requests: int  # that were answered
    ttfb_p50_ms: float
    ttfb_p95_ms: float
    ttfb_p99_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    late_streams: int
    audio_s_per_s: float  # while all users were served


def run(engine: Engine, users: int, asked: Iterator[Request], each: int) -> Row:
    """Serve `users` until each has had `each` answers on average, and some more so that none is alone at the end."""
    sent: dict[str, float] = {}
    arrivals: defaultdict[str, list[float]] = defaultdict(list)
    ended: list[str] = []

    def ask() -> None:
        request = engine.info.checked(next(asked))
        sent[request.id] = perf_counter()
        engine.add(request)

    for _ in range(users):
        ask()
    began, counted = perf_counter(), users * each
    while len(ended) < counted:
        for id, event in engine.step():
            if isinstance(event, AudioChunk):
                arrivals[id].append(perf_counter())
            elif isinstance(event, Finished):
                ended.append(id)
                ask()
            elif isinstance(event, VoxCPMError):
                raise event
    seconds = perf_counter() - began
    for id in set(sent).difference(ended):
        engine.cancel(id)
    while engine.busy:
        engine.step()
    step_seconds = engine.info.samples_per_step / engine.info.output_sample_rate
    first = sorted(arrivals[id][0] - sent[id] for id in ended)
    gaps = sorted(b - a for id in ended for a, b in pairwise(arrivals[id]))
    return Row(
        users=users,
        requests=len(ended),
        ttfb_p50_ms=quantile(first, 0.5) * 1e3,
        ttfb_p95_ms=quantile(first, 0.95) * 1e3,
        ttfb_p99_ms=quantile(first, 0.99) * 1e3,
        gap_p50_ms=quantile(gaps, 0.5) * 1e3,
        gap_p99_ms=quantile(gaps, 0.99) * 1e3,
        late_streams=sum(late(times, [step_seconds] * len(times)) for times in (arrivals[id] for id in ended)),
        audio_s_per_s=sum(map(len, arrivals.values())) * step_seconds / seconds,
    )


def questions(first: int, options: argparse.Namespace) -> Iterator[Request]:
    """Requests of random lengths, with texts that are numbered from `first` on."""
    draw, serial = np.random.default_rng(first), first
    while True:
        steps = int(draw.integers(options.min_steps, options.steps, endpoint=True))
        (one,) = requests(
            serial, 1, steps=steps, timesteps=options.timesteps, chars=options.chars, speaker=options.speaker
        )
        yield one
        serial += 1


HEADINGS = f"{'users':>7} {'TTFB p50':>9} {'p95':>8} {'p99':>8} {'gap p50':>9} {'p99':>8} {'audio-s/s':>9} {'late':>5}"


def line(row: Row) -> str:
    """A row under HEADINGS."""
    return (
        f"{row.users:7d} {row.ttfb_p50_ms:6.1f} ms {row.ttfb_p95_ms:5.1f} ms {row.ttfb_p99_ms:5.1f} ms"
        f" {row.gap_p50_ms:6.2f} ms {row.gap_p99_ms:5.1f} ms {row.audio_s_per_s:9.1f} {row.late_streams:5d}"
    )


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="demo", help="demo, a directory, or a hub repository id")
    parser.add_argument("--users", type=integers, default=[1, 4, 8], help="numbers of users, separated by commas")
    parser.add_argument("--each", type=int, default=4, help="answers that each user waits for, on average")
    parser.add_argument("--min-steps", type=int, default=20, help="steps of the shortest answer")
    parser.add_argument("--steps", type=int, default=88, help="steps of the longest answer")
    parser.add_argument("--timesteps", type=int, help="flow-matching steps; default: those of the model")
    parser.add_argument("--speaker", default="", help="a built-in voice of the model")
    parser.add_argument("--chars", type=int, default=60, help="characters of each text")
    parser.add_argument("--join-from", type=int, help="prompts join rounds of so many streams; default: the engine's")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    settings = EngineSettings(device=options.device, max_slots=max(options.users), compile="off")
    if options.timesteps is not None:
        settings = settings.model_copy(update={"timesteps": (options.timesteps,)})
    engine = load_engine(resolve(options.model), options.model, settings)
    if options.join_from is not None:
        engine.join_from = options.join_from
    rows, asked = [], questions(0, options)
    print(HEADINGS)
    with torch.inference_mode():
        run(engine, max(options.users), asked, 1)
        for users in options.users:
            rows.append(run(engine, users, asked, options.each))
            print(line(rows[-1]), flush=True)
    if options.json:
        table = {"command": command(), "versions": versions("torch", "triton"), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
