"""CUDA graphs: capture a call once, replay it with new contents of its static inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import IntEnum
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")
WARM_UP_CALLS = 2  # compile kernels and load what libraries bring before anything is recorded


class Urgency(IntEnum):
    """Of a stream's kernels, as CUDA counts: the lowest goes first."""

    AUDIO = -2  # somebody waits for it
    STEP = -1
    SPARE = 0


def stream(urgency: Urgency, device: torch.device) -> torch.cuda.Stream:
    """The one stream of that urgency on a device, for graphs and for copies from and to the host.

    After a few single kernels on streams beside the default one, whether of ours or of a library's, every kernel of
    every graph of the process starts half a microsecond later, for good (H200, driver 580): the step of 16 streams
    takes a twentieth longer.
    """
    return _stream(torch.cuda.current_device() if device.index is None else device.index, urgency)


@functools.cache
def _stream(device: int, urgency: Urgency) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=urgency)


class Lane:
    """Graphs that never run at the same time, and so share their memory; of several lanes the more urgent goes first.

    PyTorch gives the memory that one capture has left to another only if both are captured on one stream.
    """

    def __init__(self, urgency: Urgency, device: torch.device) -> None:
        self.stream = stream(urgency, device)
        self.pool: Any = torch.cuda.graph_pool_handle()


class Graph(Generic[T]):
    """One captured call. `output` is what it returned: the same tensors, new contents after every replay."""

    def __init__(self, call: Callable[[], T], lane: Lane) -> None:
        for _ in range(WARM_UP_CALLS):
            call()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=lane.pool, stream=lane.stream):
            self.output: T = call()

    def replay(self) -> T:
        self._graph.replay()
        return self.output
