"""How fast the engine alone is: a burst of streams, each of a fixed number of steps.

    python -m benchmarks.engine --model demo --streams 1,4,8 --json engine.json

Every request has a text of its own, different from the first word on and of equal token count, so that no prefix is
cached. A row is the median over `--repeats` bursts that follow a burst for warming up. Time to first audio counts from
the submission of the burst; what the other columns mean is said in `burst.Row`.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from benchmarks import burst
from benchmarks.burst import Row
from benchmarks.hardware import command, gpu_memory_gib, versions
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.request import Admitted, AudioChunk, CodecChunk, Finished, Request, Sampling
from voxcpm_grpc.settings.schema import EngineSettings

UPLOAD = "upload"  # the name of the codec job beside the streams


def requests(first: int, streams: int, *, steps: int, timesteps: int, chars: int) -> list[Request]:
    """Streams of exactly `steps` steps, numbered from `first` on."""
    sampling = Sampling(min_steps=steps, max_steps=steps, inference_timesteps=timesteps)
    return [
        Request(id=str(serial), text=burst.text(serial, chars), sampling=sampling)
        for serial in range(first, first + streams)
    ]


def speak(engine: Engine, together: list[Request], upload: np.ndarray) -> Row:
    """Submit all at once and run to the end. `upload`, unless empty, is encoded again and again meanwhile."""
    steps = together[0].sampling.max_steps
    began = perf_counter()
    for request in together:
        engine.add(request)
    heard: defaultdict[str, list[float]] = defaultdict(list)
    prompt = cached = spoken = 0
    if len(upload):
        engine.encode(UPLOAD, upload, pad_left=False)
    while spoken < len(together):
        results = engine.step()
        now = perf_counter()
        for id, event in results:
            match event:
                case AudioChunk():
                    heard[id].append(now - began)
                case Admitted():
                    prompt = max(prompt, event.prompt_tokens)
                    cached += event.cached_tokens
                case Finished():
                    assert event.steps == steps, f"stream {id} ended after {event.steps} of {steps} steps"
                    spoken += 1
                case CodecChunk():
                    if event.last:
                        engine.encode(UPLOAD, upload, pad_left=False)
                case _:
                    raise RuntimeError(f"stream {id}: {event}")
    engine.cancel(UPLOAD)
    step_seconds = engine.info.samples_per_step / engine.info.output_sample_rate
    return burst.row(list(heard.values()), step_seconds, prompt_tokens=prompt, cached_prefix_tokens=cached)


def measure(
    engine: Engine,
    streams: int,
    *,
    steps: int,
    timesteps: int,
    chars: int,
    repeats: int,
    first: int,
    upload_seconds: float = 0.0,
) -> Row:
    """The median row of `repeats` bursts."""
    samples = int(upload_seconds * engine.info.input_sample_rate)
    upload = np.random.default_rng(0).uniform(-0.5, 0.5, samples).astype(np.float32)
    rows = []
    for repeat in range(repeats + 1):
        serial = first + repeat * streams
        rows.append(speak(engine, requests(serial, streams, steps=steps, timesteps=timesteps, chars=chars), upload))
    return burst.median(rows[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="demo, a directory, or a hub repository id")
    parser.add_argument("--streams", default="1,4,8", help="bursts of these many streams")
    parser.add_argument("--steps", type=int, default=50, help="steps of each stream")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--repeats", type=int, default=3, help="bursts per row, after one to warm up")
    parser.add_argument("--upload-seconds", type=float, default=0.0, help="a recording that is encoded all the while")
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
    print(burst.HEADINGS)
    with torch.inference_mode():
        for count in counts:
            shape = {"steps": options.steps, "timesteps": options.timesteps, "chars": options.chars}
            shape["upload_seconds"] = options.upload_seconds
            row = measure(engine, count, repeats=options.repeats, first=first, **shape)
            first += count * (options.repeats + 1)
            rows.append(row)
            print(burst.line(row), flush=True)
    if options.json:
        pages = engine.stats().pages_total * settings.page_size
        table = {
            "command": command(),
            "versions": versions("torch", "triton") | {"dtype": engine.info.dtype},
            "memory_gib": gpu_memory_gib() if engine.info.device.startswith("cuda") else None,
            "kv_gib": pages * engine.model.layout.bytes_per_position / 2**30,
            "rows": [asdict(row) for row in rows],
        }
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
