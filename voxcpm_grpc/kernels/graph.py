"""CUDA graphs: capture a call once, replay it with new contents of its static inputs."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")
WARM_UP_CALLS = 2  # compile kernels and let libraries allocate before anything is recorded


class Urgency(IntEnum):
    """Of a stream's kernels, as CUDA counts: the lowest goes first."""

    AUDIO = -2  # somebody waits for it
    STEP = -1
    SPARE = 0


class Graph(Generic[T]):
    """One captured call. `output` is what it returned: the same tensors, new contents after every replay.

    Graphs that share a memory pool must not run at the same time. Where others run, the more urgent goes first.
    """

    def __init__(self, call: Callable[[], T], pool: Any, urgency: Urgency) -> None:
        stream = torch.cuda.Stream(priority=urgency)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_CALLS):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool, stream=stream):
            self.output: T = call()

    def replay(self) -> T:
        self._graph.replay()
        return self.output
