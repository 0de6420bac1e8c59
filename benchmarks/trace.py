"""What a GPU does during a step, and how long it idles.

    python -m benchmarks.trace --model DIR --streams 1,16,64 --plot timeline.png
    python -m benchmarks.trace --model DIR --streams all --json launches.json     every batch bucket

A profiler records kernels, copies and memsets of some steps in mid-burst. `busy` is the union of their times: kernels
that overlap count once, one that waits for another counts as busy. `idle` is the rest of the traced time, in which the
profiler itself widens the gaps between kernels; `starved` is the part of it in gaps so long that the GPU must have had
nothing to do. The step's time is measured without the profiler.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from benchmarks.engine import requests
from benchmarks.hardware import command, versions
from voxcpm_grpc.checkpoint import resolve
from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.engine.graph import batch_buckets
from voxcpm_grpc.engine.load import load_engine
from voxcpm_grpc.request import AudioChunk
from voxcpm_grpc.settings.schema import EngineSettings

SETTLE, TIMED, WARM, TRACED = 4, 30, 3, 10  # steps: before anything, by the clock, under a warming profiler, traced
SPARE = 40  # steps by which the first stream of a burst may be ahead of the last
STARVED_US = 10.0  # a gap between kernels of one graph is a tenth of this
NAME = 120  # characters of a kernel's name that are kept
KINDS = {"kernel": "kernels", "gpu_memcpy": "copies", "gpu_memset": "memsets"}


@dataclass(frozen=True, slots=True)
class Activity:
    """Something that ran on the GPU. Times in microseconds."""

    kind: str  # kernels, copies or memsets
    name: str
    start: float
    end: float
    in_graph: bool
    stream: int  # as the profiler numbers them


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A step of so many streams; all but shares and streams per step."""

    streams: int
    step_ms: float
    traced_ms: float
    busy_ms: float
    idle_share: float
    starved_share: float
    kernels: float
    copies: float
    memsets: float
    graph_nodes: float
    graph_launches: float


def activities(events: Iterable[Mapping[str, Any]]) -> list[Activity]:
    """Of a trace in Chrome's format, in the order of their start."""
    events = list(events)
    graphs = {e["args"].get("correlation") for e in events if _is_graph_launch(e)}
    found = [
        Activity(
            KINDS[e["cat"]],
            e["name"],
            e["ts"],
            e["ts"] + e["dur"],
            in_graph=e["args"].get("correlation") in graphs,
            stream=e["args"]["stream"],
        )
        for e in events
        if e.get("cat") in KINDS
    ]
    return sorted(found, key=lambda activity: activity.start)


def _is_graph_launch(event: Mapping[str, Any]) -> bool:
    return event.get("cat") in ("cuda_runtime", "cuda_driver") and "GraphLaunch" in event["name"]


def row(streams: int, step_ms: float, ran: Sequence[Activity], graph_launches: int, steps: int) -> Row:
    """Of the activities of so many steps, in the order of their start."""
    if not ran:
        raise SystemExit("the trace holds nothing of a GPU; is there one, and may the profiler read it?")
    begin = reached = ran[0].start
    busy = starved = 0.0
    for activity in ran:
        gap = activity.start - reached
        if gap > STARVED_US:
            starved += gap
        busy += max(0.0, activity.end - max(reached, activity.start))
        reached = max(reached, activity.end)
    counts = Counter(activity.kind for activity in ran)
    return Row(
        streams=streams,
        step_ms=step_ms,
        traced_ms=(reached - begin) / steps / 1e3,
        busy_ms=busy / steps / 1e3,
        idle_share=1 - busy / (reached - begin),
        starved_share=starved / (reached - begin),
        **{kind: counts[kind] / steps for kind in KINDS.values()},
        graph_nodes=sum(activity.in_graph for activity in ran) / steps,
        graph_launches=graph_launches / steps,
    )


def heaviest(ran: Sequence[Activity], steps: int, most: int) -> list[dict[str, Any]]:
    """The names that the GPU spent most time in: milliseconds and runs a step."""
    spent: defaultdict[str, float] = defaultdict(float)
    runs: Counter[str] = Counter()
    for activity in ran:
        spent[activity.name] += activity.end - activity.start
        runs[activity.name] += 1
    names = sorted(spent, key=lambda name: -spent[name])[:most]
    return [{"name": name[:NAME], "ms": spent[name] / steps / 1e3, "runs": runs[name] / steps} for name in names]


def widest_gaps(ran: Sequence[Activity], steps: int, most: int) -> list[dict[str, Any]]:
    """Between which activities the GPU idles most: milliseconds and gaps a step."""
    spent: defaultdict[tuple[str, str], float] = defaultdict(float)
    count: Counter[tuple[str, str]] = Counter()
    last = ran[0]
    for activity in ran[1:]:
        if activity.start > last.end:
            pair = last.name[:NAME], activity.name[:NAME]
            spent[pair] += activity.start - last.end
            count[pair] += 1
        if activity.end > last.end:
            last = activity
    pairs = sorted(spent, key=lambda pair: -spent[pair])[:most]
    return [
        {"after": pair[0], "before": pair[1], "ms": spent[pair] / steps / 1e3, "gaps": count[pair] / steps}
        for pair in pairs
    ]


@torch.inference_mode()
def trace(engine: Engine, streams: int, *, first: int, timesteps: int, chars: int) -> tuple[Row, list[Activity]]:
    """A burst of streams, timed, then traced, in mid-speech."""
    steps = SETTLE + TIMED + WARM + TRACED + SPARE
    for request in requests(first, streams, steps=steps, timesteps=timesteps, chars=chars):
        engine.add(request)
    heard = Counter()
    while len(heard) < streams or min(heard.values()) < SETTLE:
        heard.update(id for id, event in engine.step() if isinstance(event, AudioChunk))
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
                    torch.cuda.synchronize()  # what is launched from here on, and only that, will be in the trace
                profiler.step()
        events = json.loads(path.read_text())["traceEvents"]
    while engine.busy:
        engine.step()
    ran = activities(events)
    return row(streams, step_ms, ran, sum(map(_is_graph_launch, events)), TRACED), ran


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a directory, or a hub repository id")
    parser.add_argument("--streams", default="1,16,64", help="counts of streams, or all: every bucket up to --slots")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--top", type=int, default=12, help="how many names of kernels, and gaps, to list")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--json", type=Path, help="write the table here too")
    parser.add_argument("--plot", type=Path, help="draw two steps of each count here")
    options = parser.parse_args()

    counts = batch_buckets(options.slots) if options.streams == "all" else [int(n) for n in options.streams.split(",")]
    settings = EngineSettings(
        device="cuda", max_slots=max(counts), timesteps=(options.timesteps,), graphs=not options.eager
    )
    engine = load_engine(resolve(options.model), options.model, settings)
    rows, tops, gaps, timelines, first = [], {}, {}, {}, 0
    print(HEADINGS)
    for count in counts:
        one, ran = trace(engine, count, first=first, timesteps=options.timesteps, chars=options.chars)
        first += count
        rows.append(one)
        tops[count] = heaviest(ran, TRACED, options.top)
        gaps[count] = widest_gaps(ran, TRACED, options.top)
        timelines[count] = ran
        print(line(one), flush=True)
    if options.json:
        table = {
            "command": command(),
            "versions": versions("torch", "triton"),
            "rows": [asdict(one) for one in rows],
            "heaviest": tops,
            "widest_gaps": gaps,
        }
        options.json.write_text(json.dumps(table, indent=2) + "\n")
    if options.plot:
        from benchmarks.plots import timeline

        timeline({one.streams: (one, timelines[one.streams]) for one in rows}, options.plot)


HEADINGS = (
    f"{'streams':>7} {'step':>9} {'traced':>9} {'busy':>9} {'idle':>6} {'starved':>7} {'kernels':>7} {'copies':>6}"
    f" {'memsets':>7} {'nodes':>7} {'launches':>8}"
)


def line(row: Row) -> str:
    """A row as it is printed under HEADINGS."""
    return (
        f"{row.streams:7d} {row.step_ms:6.2f} ms {row.traced_ms:6.2f} ms {row.busy_ms:6.2f} ms {row.idle_share:6.1%}"
        f" {row.starved_share:7.1%} {row.kernels:7.0f} {row.copies:6.1f} {row.memsets:7.1f} {row.graph_nodes:7.0f}"
        f" {row.graph_launches:8.1f}"
    )


if __name__ == "__main__":
    main()
