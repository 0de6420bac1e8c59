"""The time of a training run: a budget in seconds, from which the learning rate follows, and steps as CUDA graphs."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch

graphs_allowed = True


class Budget:
    """The seconds of a training run.

    spent: seconds of the parts before this one. part: the most seconds of this part; None for no limit.
    """

    def __init__(self, seconds: float, spent: float = 0.0, part: float | None = None) -> None:
        self.seconds = seconds
        self.before = spent
        self.part = math.inf if part is None else part
        self.begun = time.monotonic()

    @property
    def spent(self) -> float:
        return self.before + time.monotonic() - self.begun

    @property
    def progress(self) -> float:
        """The share of the budget that is used, 0 to 1."""
        return min(1.0, self.spent / self.seconds)

    @property
    def over(self) -> bool:
        """True when the run, or this part of it, must end."""
        return self.progress >= 1 or time.monotonic() - self.begun >= self.part


def rate(progress: float, step: int, *, peak: float, warmup: int, decay_from: float) -> float:
    """The learning rate: a linear warm-up in steps, then `peak`, then from `decay_from` of the time a decay to 1 %."""
    decay = min(1.0, max(0.0, (progress - decay_from) / (1 - decay_from)))
    return peak * min(1.0, (step + 1) / warmup) * max(0.01, 1 - decay)


class Graphed:
    """A step without arguments that reads and writes fixed tensors. On a GPU it is replayed as one CUDA graph.

    The first WARM calls run the step without a graph, so that libraries choose their algorithms; the next one captures
    it. reset: called before the capture; it drops gradients, which the graph must allocate itself. pool: memory that
    graphs may share if they never run at the same time.
    """

    WARM = 3

    def __init__(
        self, step: Callable[[], None], reset: Callable[[], None], device: torch.device, pool: Any = None
    ) -> None:
        self.step, self.reset, self.device, self.pool = step, reset, device, pool
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        elif self.device.type != "cuda" or not graphs_allowed:
            self.reset()
            self.step()
        elif self.calls < self.WARM:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self.reset()
                self.step()
            torch.cuda.current_stream().wait_stream(stream)
        else:
            self.reset()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool):
                self.step()
            self.graph = graph
            graph.replay()
        self.calls += 1
