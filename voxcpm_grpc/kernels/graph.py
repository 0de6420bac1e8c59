"""CUDA graphs: capture a call once, replay it with new contents of its static inputs."""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Generic, TypeVar

import torch

from voxcpm_grpc.kernels.cuda.status import checked

T = TypeVar("T")
WARM_UP_CALLS = 2  # compile kernels and load what libraries bring before anything is recorded


class Urgency(IntEnum):
    """Of a stream's kernels, as CUDA counts: the lowest goes first."""

    AUDIO = -2  # somebody waits for it
    STEP = -1
    SPARE = 0


def stream(urgency: Urgency, device: torch.device) -> torch.cuda.Stream:
    """The one stream of that urgency on a device, for graphs and for copies from and to the host.

    For nothing else where there are graphs: in processes whose single kernels ran on more than one stream, be they a
    library's or those of PyTorch's captures, every kernel of every graph started half a microsecond later, for good
    (H200, driver 580; "Seams that grow" in benchmarks/LOG.md). The step of 16 streams takes a twentieth longer then.
    """
    return _stream(torch.cuda.current_device() if device.index is None else device.index, urgency)


@functools.cache
def _stream(device: int, urgency: Urgency) -> torch.cuda.Stream:
    return torch.cuda.Stream(device, priority=urgency)


class Lane:
    """Graphs that never run at the same time, and so share their memory; of several lanes the more urgent goes first.

    PyTorch gives the memory that one capture has left to another only if both are captured on one stream. What cuBLAS
    works in lies in the pool of the first lane that used it on a stream, and stays.
    """

    def __init__(self, urgency: Urgency, device: torch.device) -> None:
        self.stream = stream(urgency, device)
        self.pool = torch.cuda.MemPool()


class Graph(Generic[T]):
    """One captured call. `output` is what it returned: the same tensors, new contents after every replay.

    Captured by CUDA's own calls, since `torch.cuda.graph` runs two kernels on the capturing stream first (PyTorch 2.11;
    see `stream`). They are for PyTorch's random numbers, which no call may draw here. The lane's device must be the
    current one, now and for replays. Raises CudaError.
    """

    def __init__(self, call: Callable[[], T], lane: Lane) -> None:
        from cuda.bindings import runtime

        for _ in range(WARM_UP_CALLS):
            call()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()  # the pool of the lane can have what the calls have left
        handle, mode = lane.stream.cuda_stream, runtime.cudaStreamCaptureMode.cudaStreamCaptureModeGlobal
        with torch.cuda.stream(lane.stream), torch.cuda.use_mem_pool(lane.pool), _no_garbage_collected():
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
        self._lane = lane  # its memory is the graph's
        weakref.finalize(self, runtime.cudaGraphExecDestroy, self._graph).atexit = False

    def replay(self) -> T:
        checked(self._launch(self._graph, torch.cuda.current_stream().cuda_stream))
        return self.output


@contextmanager
def _no_garbage_collected() -> Iterator[None]:
    """The memory of a lane that is garbage must not be given back while something is captured: PyTorch aborts."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
