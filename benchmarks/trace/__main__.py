"""Measure the kernels, copies and memsets of a step on a GPU, and how long the GPU is idle.

    python -m benchmarks.trace --model DIR --streams 1,16,64 --plot timeline.png
    python -m benchmarks.trace --model DIR --streams all --json launches.json     every batch bucket

A profiler records some steps in the middle of a burst. `trace.activities` defines the columns busy, idle and starved.
The time of a step is measured without the profiler.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from time import perf_counter

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.engine.requests import requests
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser
from benchmarks.trace.activities import (
    HEADINGS,
    Activity,
    Row,
    activities,
    by_graph,
    heaviest,
    is_graph_launch,
    line,
    row,
    widest_gaps,
)
from benchmarks.trace.parts import measure
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.engine.device.graphs import generate_buckets
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.events import AudioChunk
from voxcpm_grpc.settings.engine import EngineSettings

SETTLE, TIMED, WARM, TRACED = 4, 30, 3, 10  # steps: before any measurement, timed, while the profiler starts, traced
SPARE = 40  # steps by which the first stream of a burst may be ahead of the last


@torch.inference_mode()
def trace(
    engine: Engine, streams: int, *, first: int, timesteps: int | None, chars: int, speaker: str = ""
) -> tuple[Row, list[Activity]]:
    """Time some steps in the middle of a burst, then trace some. The options are those of `requests`."""
    engine.join_from = sys.maxsize  # a round is one call of `step`, as it is when no request has arrived for a while
    steps = SETTLE + TIMED + WARM + TRACED + SPARE
    for request in requests(first, streams, steps=steps, timesteps=timesteps, chars=chars, speaker=speaker):
        engine.add(request)
    chunks = Counter()
    while len(chunks) < streams or min(chunks.values()) < SETTLE:
        chunks.update(id for id, event in engine.step() if isinstance(event, AudioChunk))
    began = perf_counter()
    for _ in range(TIMED):
        engine.step()
    step_ms = (perf_counter() - began) / TIMED * 1e3
    plan = schedule(wait=0, warmup=WARM, active=TRACED, repeat=1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with profile(
            activities=[ProfilerActivity.CUDA],
            schedule=plan,
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        ) as profiler:
            for index in range(WARM + TRACED):
                engine.step()
                if index == WARM - 1:
                    torch.cuda.synchronize()  # the trace then has nothing that was launched earlier
                profiler.step()
        events = json.loads(path.read_text())["traceEvents"]
    while engine.busy:
        engine.step()
    ran = activities(events)
    return row(streams, step_ms, ran, sum(map(is_graph_launch, events)), TRACED), ran


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = command_parser(__doc__)
    parser.add_argument("--model", required=True, help="a directory, or a hub repository id")
    parser.add_argument(
        "--streams",
        default="1,16,64",
        help="counts of streams, separated by commas; all: every batch bucket up to --slots",
    )
    parser.add_argument("--slots", type=int, default=64, help="largest batch with --streams all")
    parser.add_argument("--timesteps", type=int, help="flow-matching steps; default: those of the model")
    parser.add_argument("--speaker", default="", help="a built-in voice of the model")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--top", type=int, default=12, help="rows in the lists of the longest kernels and gaps")
    parser.add_argument("--parts", action="store_true", help="also measure each part of a step alone")
    parser.add_argument("--eager", action="store_true", help="use no CUDA graphs")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--plot", type=Path, help="draw two steps of each count into this file")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    counts = (
        generate_buckets(options.slots) if options.streams == "all" else [int(n) for n in options.streams.split(",")]
    )
    settings = EngineSettings(device="cuda", max_slots=max(counts), graphs=not options.eager)
    if options.timesteps is not None:
        settings = settings.model_copy(update={"timesteps": (options.timesteps,)})
    engine = load_engine(resolve(options.model), options.model, settings)
    rows, parts, graphs, tops, gaps, timelines, first = [], [], {}, {}, {}, {}, 0
    print(HEADINGS)
    for count in counts:
        one, ran = trace(
            engine,
            count,
            first=first,
            timesteps=options.timesteps,
            chars=options.chars,
            speaker=options.speaker,
        )
        first += count
        rows.append(one)
        graphs[count] = by_graph(ran, TRACED)
        tops[count] = heaviest(ran, TRACED, options.top)
        gaps[count] = widest_gaps(ran, TRACED, options.top)
        timelines[count] = ran
        print(line(one), flush=True)
        print("        " + ", ".join(f"{name} {spent:.2f} ms" for name, spent in graphs[count].items()), flush=True)
    for count in counts if options.parts else ():
        parts.append(measure(engine, count, options.timesteps))
        print(parts[-1], flush=True)
    if options.json:
        table = {
            "command": command(),
            "versions": versions("torch", "triton"),
            "rows": [asdict(one) for one in rows],
            "graphs": graphs,
            "parts": [asdict(one) for one in parts],
            "heaviest": tops,
            "widest_gaps": gaps,
        }
        options.json.write_text(json.dumps(table, indent=2) + "\n")
    if options.plot:
        from benchmarks.trace import figure

        figure.draw({one.streams: (one, timelines[one.streams]) for one in rows}, options.plot)


if __name__ == "__main__":
    main()
