"""Kernels, copies and memsets of a GPU, from a profiler's trace, and the rows of their table. Needs no PyTorch.

`busy` is the union of their times: kernels that overlap count once, and a kernel that waits for another one counts as
busy. `idle` is the rest of the traced time; the profiler itself widens the gaps between kernels. `starved` is the part
of `idle` in gaps of more than STARVED_US, in which the GPU had nothing to run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

STARVED_US = 10.0  # a gap between two kernels of one graph takes about a tenth of this


GRAPHS = ("patch", "audio", "language models")  # that a step launches, in this order

NAME = 120  # characters of a kernel's name in the table


KINDS = {"kernel": "kernels", "gpu_memcpy": "copies", "gpu_memset": "memsets"}


@dataclass(frozen=True, slots=True)
class Activity:
    """A kernel, copy or memset that ran on the GPU. Times are in microseconds."""

    kind: str  # kernels, copies or memsets
    name: str
    start: float
    end: float
    graph: int | None  # the launch of its graph: a number that grows from launch to launch
    stream: int  # the profiler's number of the CUDA stream

    @property
    def in_graph(self) -> bool:
        return self.graph is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The mean of some steps. Times and counts are those of one step; shares are of `traced_ms`."""

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
    """The activities in a trace in Chrome's format, in the order of their start."""
    events = list(events)
    graphs = {e["args"].get("correlation") for e in events if is_graph_launch(e)}
    found = [
        Activity(
            KINDS[e["cat"]],
            e["name"],
            e["ts"],
            e["ts"] + e["dur"],
            graph=launch if (launch := e["args"].get("correlation")) in graphs else None,
            stream=e["args"]["stream"],
        )
        for e in events
        if e.get("cat") in KINDS
    ]
    return sorted(found, key=lambda activity: activity.start)


def is_graph_launch(event: Mapping[str, Any]) -> bool:
    return event.get("cat") in ("cuda_runtime", "cuda_driver") and "GraphLaunch" in event["name"]


def row(streams: int, step_ms: float, ran: Sequence[Activity], graph_launches: int, steps: int) -> Row:
    """The row of `steps` steps. `ran` are their activities in the order of their start.

    Raises SystemExit if there are none.
    """
    if not ran:
        raise SystemExit("the trace has no GPU activity; check that there is a GPU and that the profiler may read it")
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


def by_graph(ran: Sequence[Activity], steps: int) -> dict[str, float]:
    """Milliseconds between the beginning and the end of each graph of a step, means over `steps` steps.

    Empty if a step has not launched GRAPHS, one of each, in their order.
    """
    nodes: defaultdict[int, list[Activity]] = defaultdict(list)
    for activity in ran:
        if activity.graph is not None:
            nodes[activity.graph].append(activity)
    if len(nodes) != len(GRAPHS) * steps:
        return {}
    spent: dict[str, float] = dict.fromkeys(GRAPHS, 0.0)
    for index, launch in enumerate(sorted(nodes)):
        began, ended = min(node.start for node in nodes[launch]), max(node.end for node in nodes[launch])
        spent[GRAPHS[index % len(GRAPHS)]] += (ended - began) / steps / 1e3
    return spent


def heaviest(ran: Sequence[Activity], steps: int, most: int) -> list[dict[str, Any]]:
    """The `most` names with the longest total time, with milliseconds and runs of a step."""
    spent: defaultdict[str, float] = defaultdict(float)
    runs: Counter[str] = Counter()
    for activity in ran:
        spent[activity.name] += activity.end - activity.start
        runs[activity.name] += 1
    names = sorted(spent, key=lambda name: -spent[name])[:most]
    return [{"name": name[:NAME], "ms": spent[name] / steps / 1e3, "runs": runs[name] / steps} for name in names]


def widest_gaps(ran: Sequence[Activity], steps: int, most: int) -> list[dict[str, Any]]:
    """The `most` pairs of activities with the longest total gap between them, with milliseconds and gaps of a step."""
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


HEADINGS = (
    f"{'streams':>7} {'step':>9} {'traced':>9} {'busy':>9} {'idle':>6} {'starved':>7} {'kernels':>7} {'copies':>6}"
    f" {'memsets':>7} {'nodes':>7} {'launches':>8}"
)


def line(row: Row) -> str:
    """A row under HEADINGS."""
    return (
        f"{row.streams:7d} {row.step_ms:6.2f} ms {row.traced_ms:6.2f} ms {row.busy_ms:6.2f} ms {row.idle_share:6.1%}"
        f" {row.starved_share:7.1%} {row.kernels:7.0f} {row.copies:6.1f} {row.memsets:7.1f} {row.graph_nodes:7.0f}"
        f" {row.graph_launches:8.1f}"
    )
