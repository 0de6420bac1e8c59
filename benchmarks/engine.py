"""How fast the engine alone is: a burst of streams, each of a fixed number of steps.

    python -m benchmarks.engine --model demo --streams 1,4,8 --json engine.json

Every request has a text of its own, different from the first character on and of equal token count, so that no prefix
is cached. A row is the median over `--repeats` bursts that follow a burst for warming up. Time to first audio counts
from the submission of the burst; step is the time between two chunks of a stream; the real-time factor is the time of
a stream over its audio.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from collections import defaultdict
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from time import perf_counter

import torch

from voxcpm_grpc import __version__
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.config import EngineSettings
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.request import Admitted, AudioChunk, Finished, Request, Sampling

SENTENCE = "the quick brown fox jumps over the lazy dog while seven wizards quietly mix a box of toxic jelly "


@dataclass(frozen=True, slots=True)
class Row:
    streams: int
    step_p50_ms: float
    step_p99_ms: float
    ttfb_p50_ms: float
    ttfb_p90_ms: float
    rtf: float
    audio_s_per_s: float
    cached_prefix_tokens: int


def text(serial: int, chars: int) -> str:
    """A text no other serial number begins with, always of the same length and the same words after its number."""
    return (f"{serial:06d} " + SENTENCE * (chars // len(SENTENCE) + 1))[:chars]


def burst(engine: Engine, first: int, streams: int, steps: int, timesteps: int, chars: int) -> Row:
    """Submit all at once and run to the end."""
    sampling = Sampling(min_steps=steps, max_steps=steps, inference_timesteps=timesteps)
    began = perf_counter()
    for serial in range(first, first + streams):
        engine.add(Request(id=str(serial), text=text(serial, chars), sampling=sampling))
    heard: defaultdict[str, list[float]] = defaultdict(list)
    cached = 0
    while engine.busy:
        results = engine.step()
        now = perf_counter()
        for id, event in results:
            match event:
                case AudioChunk():
                    heard[id].append(now - began)
                case Admitted():
                    cached += event.cached_tokens
                case Finished():
                    assert event.steps == steps, f"stream {id} ended after {event.steps} of {steps} steps"
                case _:
                    raise RuntimeError(f"stream {id}: {event}")
    audio = steps * engine.info.samples_per_step / engine.info.output_sample_rate
    gaps = sorted(b - a for times in heard.values() for a, b in pairwise(times))
    starts = sorted(times[0] for times in heard.values())
    ends = [times[-1] for times in heard.values()]
    return Row(
        streams=streams,
        step_p50_ms=quantile(gaps, 0.5) * 1e3,
        step_p99_ms=quantile(gaps, 0.99) * 1e3,
        ttfb_p50_ms=quantile(starts, 0.5) * 1e3,
        ttfb_p90_ms=quantile(starts, 0.9) * 1e3,
        rtf=statistics.median(ends) / audio,
        audio_s_per_s=streams * audio / max(ends),
        cached_prefix_tokens=cached,
    )


def quantile(ordered: list[float], q: float) -> float:
    return ordered[min(len(ordered) - 1, round(q * (len(ordered) - 1)))]


def measure(engine: Engine, streams: int, *, steps: int, timesteps: int, chars: int, repeats: int, first: int) -> Row:
    """The median row of `repeats` bursts."""
    rows = []
    for repeat in range(repeats + 1):
        rows.append(burst(engine, first + repeat * streams, streams, steps, timesteps, chars))
    columns = {name: statistics.median(getattr(row, name) for row in rows[1:]) for name in Row.__dataclass_fields__}
    return Row(**columns)


def versions(engine: Engine) -> dict[str, str]:
    device = torch.cuda.get_device_name() if engine.info.device.startswith("cuda") else platform.processor()
    return {
        "voxcpm-grpc": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device or platform.machine(),
        "threads": str(torch.get_num_threads()),
        "dtype": engine.info.dtype,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="demo, a directory, or a hub repository id")
    parser.add_argument("--streams", default="1,4,8", help="bursts of these many streams")
    parser.add_argument("--steps", type=int, default=50, help="steps of each stream")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--chars", type=int, default=90, help="characters of each text")
    parser.add_argument("--repeats", type=int, default=3, help="bursts per row, after one to warm up")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--json", type=Path, help="write the table here too")
    options = parser.parse_args()

    counts = [int(count) for count in options.streams.split(",")]
    settings = EngineSettings(
        device=options.device, max_slots=max(counts), timesteps=(options.timesteps,), graphs=not options.eager
    )
    engine = load_engine(resolve(options.model), options.model, settings)
    rows, first = [], 0
    print(f"{'streams':>7} {'step p50':>9} {'p99':>8} {'TTFB p50':>9} {'p90':>8} {'RTF':>7} {'audio-s/s':>9}")
    with torch.inference_mode():
        for count in counts:
            shape = {"steps": options.steps, "timesteps": options.timesteps, "chars": options.chars}
            row = measure(engine, count, repeats=options.repeats, first=first, **shape)
            first += count * (options.repeats + 1)
            rows.append(row)
            print(
                f"{row.streams:7d} {row.step_p50_ms:6.2f} ms {row.step_p99_ms:5.1f} ms {row.ttfb_p50_ms:6.1f} ms"
                f" {row.ttfb_p90_ms:5.1f} ms {row.rtf:7.4f} {row.audio_s_per_s:9.1f}"
            )
    if options.json:
        command = "python -m benchmarks.engine " + " ".join(sys.argv[1:])
        table = {"command": command, "versions": versions(engine), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
