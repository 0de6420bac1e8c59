"""CUDA graphs: a call is captured once and replayed with new content of its static inputs."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Generic, TypeVar

import torch

from voxcpm_grpc.kernels.cuda.compiler import checked
from voxcpm_grpc.kernels.launch.counters import captured_with, new_counters

T = TypeVar("T")


class Priority(IntEnum):
    """The priority of a stream's kernels. As in CUDA, the lowest number runs first."""

    AUDIO = -2  # a user waits for it
    STEP = -1
    SPARE = 0


def stream(priority: Priority, device: torch.device) -> torch.cuda.Stream:
    """The stream of this priority on a device, for graphs and for copies from and to the host.

    In a process with graphs it must run nothing else. If single kernels, cuBLAS's or those of PyTorch's captures
    included, run on more than one stream, every kernel of every graph starts half a microsecond later from then on, and
    a step of 16 streams takes 5 % longer (H200, driver 580; "Seams that grow" in benchmarks/LOG.md).
    """
    return _stream(torch.cuda.current_device() if device.index is None else device.index, priority)


@functools.cache
def _stream(device: int, priority: Priority) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=priority)


class GraphPool:
    """The stream, the memory and the counters of graphs that never run at the same time and therefore share them.

    PyTorch reuses the memory of one capture for another only if both are captured on the same stream. The workspace of
    cuBLAS is allocated in the first pool that uses it on a stream, and stays there.
    """

    def __init__(self, priority: Priority, device: torch.device) -> None:
        self.stream = stream(priority, device)
        self.memory = torch.cuda.MemPool()
        self.counters = new_counters(device)


class Graph(Generic[T]):
    """A captured call. `output` is its result: the same tensors, with new content after every replay.

    The graph has the addresses of the tensors that the call reads; its user keeps the tensors. The call must not draw
    PyTorch's random numbers. The pool's device must be the current one, at construction and at every replay. Raises
    CudaError.

    The capture uses CUDA directly, because `torch.cuda.graph` first runs two kernels for random numbers on the
    capturing stream (PyTorch 2.11; see `stream`).
    """

    def __init__(self, call: Callable[[], T], pool: GraphPool) -> None:
        from cuda.bindings import runtime

        # The relaxed mode allows the call to load kernels that were not used before.
        handle, mode = pool.stream.cuda_stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
        placed = torch.cuda.stream(pool.stream), torch.cuda.use_mem_pool(pool.memory), captured_with(pool.counters)
        with _no_garbage_collected(), placed[0], placed[1], placed[2]:
            checked(runtime.cudaStreamBeginCapture(handle, mode))
            try:
                self.output: T = call()
            finally:
                ended = runtime.cudaStreamEndCapture(handle)
        captured = checked(ended)
        flags = runtime.cudaGraphInstantiateFlags.cudaGraphInstantiateFlagUseNodePriority
        self._graph = checked(runtime.cudaGraphInstantiate(captured, flags))
        checked(runtime.cudaGraphDestroy(captured))
        self._launch = runtime.cudaGraphLaunch
        self._pool = pool  # the memory of the graph stays alive with it
        weakref.finalize(self, runtime.cudaGraphExecDestroy, self._graph).atexit = False

    def replay(self) -> T:
        checked(self._launch(self._graph, torch.cuda.current_stream().cuda_stream))
        return self.output


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """Prevents the collection of an unused pool while another one is in use: PyTorch aborts when it is freed then."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
