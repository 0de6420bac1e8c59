"""What else a process does on its GPU, and how much later the kernels of its graphs start from then on.

    python -m benchmarks.seams

A graph of nine evaluations of the diffusion transformer at 352 rows is replayed on the default stream, again and again;
between its replays something happens on another stream, a new one each time if not said otherwise. Microseconds of a
replay, medians of ten; the first is of a process that has done nothing else yet. Every case has a process of its own,
for what it changes stays.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from benchmarks.kernels import DEVICE, DTYPE, LOCAL, attend_local, random_stack, rotation
from voxcpm_grpc.attention import select_attention
from voxcpm_grpc.kernels.graph import WARM_UP_CALLS, Graph, Lane, Urgency
from voxcpm_grpc.layers.ops import select_ops

EVALUATIONS, ROWS, TIMES, REPLAYS = 9, (32, 11), 6, 10
TIMEOUT = 120  # seconds of one case


class TorchGraph:
    """A `Graph` as PyTorch captures it: after two kernels of its own on the lane's stream."""

    def __init__(self, call: Callable[[], object], lane: Lane) -> None:
        for _ in range(WARM_UP_CALLS):
            call()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, stream=lane.stream):
            call()

    def replay(self) -> None:
        self._graph.replay()


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the cases need."""

    graph: Graph[torch.Tensor] | TorchGraph
    few: torch.Tensor
    many: torch.Tensor
    host: torch.Tensor  # pinned, as large as `many`


@dataclass(frozen=True, slots=True)
class Case:
    """What happens, whether on a new stream each time or always on one (new, or the captures'), and who captures."""

    happens: Callable[[Surroundings], object]
    where: Literal["new", "one", "captures"] = "new"
    capture: type[Graph[torch.Tensor]] | type[TorchGraph] = Graph


def run_kernel(near: Surroundings) -> None:
    near.few.add_(1)


def replay_other(near: Surroundings) -> None:
    near.graph.replay()


CASES = {
    "nothing": Case(lambda near: None),
    "kernel": Case(run_kernel),
    "kernel, always on the same": Case(run_kernel, "one"),
    "kernel, always on the captures'": Case(run_kernel, "captures"),
    "copy on the device": Case(lambda near: near.many[:1000].copy_(near.many[2000:3000])),
    "copies from and to the host": Case(
        lambda near: near.host.copy_(near.many.copy_(near.host, non_blocking=True), non_blocking=True)
    ),
    "memory": Case(lambda near: torch.empty(1 << 22, device=DEVICE)),
    "graph": Case(replay_other),
    "graph, always on the same": Case(replay_other, "one"),
    "nothing; PyTorch captures": Case(lambda near: None, capture=TorchGraph),
    "kernel; PyTorch captures": Case(run_kernel, capture=TorchGraph),
    "kernel, always on the same; PyTorch captures": Case(run_kernel, "one", TorchGraph),
}


@torch.inference_mode()
def measure(name: str) -> list[float]:
    """Microseconds of a replay before and after each time that it happens."""
    stack, turn = random_stack(LOCAL, select_ops(True, DEVICE, DTYPE), late_norm=True), rotation(ROWS[1])
    attend = partial(attend_local, select_attention("triton", DEVICE), turn)
    x, lane = torch.randn(*ROWS, LOCAL.hidden, device=DEVICE).to(DTYPE), Lane(Urgency.STEP, DEVICE)

    def evaluate() -> torch.Tensor:
        return [stack(x, attend) for _ in range(EVALUATIONS)][-1]

    case, many = CASES[name], torch.zeros(1 << 20, device=DEVICE)
    graph, other = case.capture(evaluate, lane), case.capture(evaluate, lane)
    near = Surroundings(other, many[:10], many, torch.zeros(len(many), pin_memory=True))
    one = lane.stream if case.where == "captures" else torch.cuda.Stream()
    torch.cuda.synchronize()
    found = [replay(graph)]
    for _ in range(TIMES):
        with torch.cuda.stream(torch.cuda.Stream() if case.where == "new" else one):
            case.happens(near)
        torch.cuda.synchronize()
        found.append(replay(graph))
    return found


def replay(graph: Graph[torch.Tensor] | TorchGraph) -> float:
    graph.replay()
    took = []
    for _ in range(REPLAYS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        took.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, help="measure this one alone, in this process")
    name = parser.parse_args().case
    if name:
        print(f"| {name} | {' | '.join(f'{us:.0f}' for us in measure(name))} |", flush=True)
        return
    print(f"| between replays, on another stream | at first | {' | '.join(map(str, range(1, TIMES + 1)))} |")
    print(f"|---|{'---:|' * (TIMES + 1)}", flush=True)
    for name in CASES:
        subprocess.run([sys.executable, "-m", "benchmarks.seams", "--case", name], check=True, timeout=TIMEOUT)


if __name__ == "__main__":
    main()
