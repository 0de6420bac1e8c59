"""CUDA graphs: capture a call once per size, replay it with new contents of its static inputs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import torch

T = TypeVar("T")
WARM_UP_CALLS = 2  # compile kernels and let libraries allocate before anything is recorded


class Graph(Generic[T]):
    """One captured call. `output` is what it returned: the same tensors, new contents after every replay."""

    def __init__(self, call: Callable[[], T], pool: Any) -> None:
        stream = torch.cuda.Stream(priority=-1)  # graphs go before whatever else runs beside them, such as codec jobs
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


class StepGraph(Generic[T]):
    """A call captured for several sizes, largest first, in one memory pool. A size in between uses the next larger."""

    def __init__(self, call: Callable[[int], T], sizes: Sequence[int], pool: Any) -> None:
        self.sizes = sorted(sizes)
        self._graphs = {size: Graph(lambda size=size: call(size), pool) for size in reversed(self.sizes)}

    def bucket(self, count: int) -> int:
        """The size that `count` rows run at."""
        return self.sizes[bisect_left(self.sizes, count)]

    def replay(self, count: int) -> T:
        return self._graphs[self.bucket(count)].replay()


def batch_buckets(most: int) -> list[int]:
    """Every size up to 8, then every eighth, and `most`."""
    return sorted({*range(1, min(8, most) + 1), *range(16, most, 8), most})


def token_buckets(most: int) -> list[int]:
    """Prompt rows of one prefill: at most an eighth to a half of a bucket is padding, the less the larger it is."""
    sizes = (
        16,
        32,
        48,
        64,
        96,
        128,
        160,
        192,
        256,
        320,
        384,
        448,
        512,
        *range(640, 2048, 128),
        *range(2048, most, 256),
    )
    return sorted({size for size in sizes if size < most} | {most})
