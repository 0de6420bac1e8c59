"""Measure the engine alone: bursts of streams, each of a fixed number of steps.

    python -m benchmarks.engine --model demo --streams 1,4,8 --json engine.json

Every request has a text of its own that differs from all others in its first word and has as many tokens, so that no
prefix is cached. With `--loras` the requests take turns with these adapters (`tools/make_lora.py`). A row is the median
of `--repeats` bursts, after one burst that warms up. The time to first audio counts from the submission of the burst;
`measuring.bursts.Row` describes the other columns.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

from benchmarks.engine.requests import requests, with_adapter, with_prompt
from benchmarks.measuring import bursts
from benchmarks.measuring.bursts import Row
from benchmarks.measuring.environment import command, gpu_memory_gib, versions
from benchmarks.measuring.flags import command_parser, integers
from voxcpm_grpc import lora_files
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.engine.start.compilation import compile_now
from voxcpm_grpc.events import Admitted, AudioChunk, CodecChunk, Finished
from voxcpm_grpc.request import Adapter, Request, Role
from voxcpm_grpc.settings.engine import EngineSettings

UPLOAD = "upload"  # id of the codec job beside the streams


def run_burst(engine: Engine, burst: list[Request], upload: np.ndarray) -> Row:
    """Submit all requests at once and step until they finish.

    upload: samples that the engine encodes again and again meanwhile; empty for none.
    """
    steps = burst[0].sampling.max_steps
    burst = [engine.info.checked(request) for request in burst]  # as a front has done before
    began = perf_counter()
    for request in burst:
        engine.add(request)
    arrivals: defaultdict[str, list[float]] = defaultdict(list)
    prompt = cached = finished = 0
    if len(upload):
        engine.encode(UPLOAD, upload, Role.REFERENCE)
    while finished < len(burst):
        results = engine.step()
        now = perf_counter()
        for id, event in results:
            match event:
                case AudioChunk():
                    arrivals[id].append(now - began)
                case Admitted():
                    prompt = max(prompt, event.prompt_tokens)
                    cached += event.cached_tokens
                case Finished():
                    assert event.steps == steps, f"stream {id} ended after {event.steps} of {steps} steps"
                    finished += 1
                case CodecChunk():
                    if event.last:
                        engine.encode(UPLOAD, upload, Role.REFERENCE)
                case _:
                    raise RuntimeError(f"stream {id}: {event}")
    engine.cancel(UPLOAD)
    step_seconds = engine.info.step_seconds
    return bursts.row(list(arrivals.values()), step_seconds, prompt_tokens=prompt, cached_prefix_tokens=cached)


def measure(
    engine: Engine,
    streams: int,
    *,
    steps: int,
    timesteps: int | None,
    chars: int,
    repeats: int,
    first: int,
    speaker: str = "",
    prompt_steps: int = 0,
    upload_seconds: float = 0.0,
    loras: Sequence[Adapter] = (),
) -> Row:
    """The median row of `repeats` bursts.

    timesteps: flow-matching steps, None for those of the model or for a model without
    speaker: a voice of the model, "" for none
    prompt_steps: length of the prompt that each request continues, in steps; 0 for none
    upload_seconds: length of a recording that is encoded meanwhile
    loras: adapters that the requests take in turn
    """
    samples = int(upload_seconds * engine.info.input_sample_rate)
    upload = np.random.default_rng(0).uniform(-0.5, 0.5, samples).astype(np.float32)
    rows = []
    for repeat in range(repeats + 1):
        serial = first + repeat * streams
        burst = requests(serial, streams, steps=steps, timesteps=timesteps, chars=chars, speaker=speaker)
        if prompt_steps:
            burst = [with_prompt(request, prompt_steps, engine.info) for request in burst]
        if loras:
            burst = [with_adapter(request, loras[index % len(loras)]) for index, request in enumerate(burst)]
        rows.append(run_burst(engine, burst, upload))
    return bursts.median(rows[1:])


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="demo", help="demo, a directory, or a hub repository id")
    parser.add_argument(
        "--streams", type=integers, default=[1, 4, 8], help="streams of each burst, separated by commas"
    )
    parser.add_argument("--steps", type=int, default=50, help="steps of each stream")
    parser.add_argument("--timesteps", type=int, help="flow-matching steps; default: those of the model")
    parser.add_argument("--speaker", default="", help="a built-in voice of the model")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--repeats", type=int, default=3, help="bursts of each row, after one that warms up")
    parser.add_argument(
        "--prompt-steps", type=int, default=0, help="steps of a prompt that each stream continues: a long context"
    )
    parser.add_argument("--upload-seconds", type=float, default=0.0, help="length of a recording to encode meanwhile")
    parser.add_argument("--loras", type=Path, default=None, help="directory of adapters, each in a folder of its own")
    parser.add_argument("--quantization", choices=("none", "fp8"), default="none", help="engine.quantization")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--compile", action="store_true", help="on a CPU: compile what an earlier run has not, first")
    parser.add_argument("--eager", action="store_true", help="use no CUDA graphs")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    return parser.parse_args()


def write(path: Path, engine: Engine, settings: EngineSettings, rows: Sequence[Row]) -> None:
    """Write the table, with what the engine computes with."""
    pages = engine.stats().pages_total * settings.page_size
    table = {
        "command": command(),
        "versions": versions("torch", "triton") | {"dtype": engine.info.dtype},
        "memory_gib": gpu_memory_gib() if engine.info.device.startswith("cuda") else None,
        "kv_gib": pages * engine.model.layout.bytes_per_position / 2**30,
        "step_audio_ms": 1e3 * engine.info.step_seconds,
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(table, indent=2) + "\n")


def main() -> None:
    options = parsed()
    counts: list[int] = options.streams
    entries = [f"{path.name}={path}" for path in sorted(options.loras.iterdir())] if options.loras else []
    adapters = lora_files.adapters_of(entries)
    settings = EngineSettings(
        device=options.device,
        quantization=options.quantization,
        max_slots=max(counts),
        graphs=not options.eager,
        loras=tuple(entries),
        compile="on" if options.compile else "off",
    )
    if options.timesteps is not None:
        settings = settings.model_copy(update={"timesteps": (options.timesteps,)})
    engine = load_engine(resolve(options.model), options.model, settings)
    if engine.compilation:
        compile_now(engine.compilation)
        engine = load_engine(resolve(options.model), options.model, settings)
    rows, first = [], 0
    print(bursts.HEADINGS)
    with torch.inference_mode():
        for count in counts:
            row = measure(
                engine,
                count,
                steps=options.steps,
                timesteps=options.timesteps,
                chars=options.chars,
                repeats=options.repeats,
                first=first,
                speaker=options.speaker,
                prompt_steps=options.prompt_steps,
                upload_seconds=options.upload_seconds,
                loras=adapters,
            )
            first += count * (options.repeats + 1)
            rows.append(row)
            print(bursts.line(row), flush=True)
    if options.json:
        write(options.json, engine, settings, rows)


if __name__ == "__main__":
    main()
