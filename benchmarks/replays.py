"""The time of a piece of GPU work in a captured graph."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

from voxcpm_grpc.kernels.launch.graph import Graph, GraphPool, Priority


def median_seconds(work: Callable[[], object], repeats: int = 31) -> float:
    """The median seconds of a replay of what `work` launches. It runs once before the capture, to compile."""
    work()
    torch.cuda.synchronize()
    graph = Graph(work, GraphPool(Priority.STEP, torch.device("cuda", torch.cuda.current_device())))
    times = []
    for _ in range(repeats + 5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in times[5:]) / 1e3
