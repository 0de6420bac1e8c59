"""How a training run spends its time: a budget in seconds that governs the learning rate, and steps as CUDA graphs."""

import math
import time
from collections.abc import Callable
from typing import Any

import torch

graphs_allowed = True


class Budget:
    """Seconds of training, counted over all parts of a run. `spent` goes on where an earlier part ended."""

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
        """0 at the start of the run, 1 when the budget is used up."""
        return min(1.0, self.spent / self.seconds)

    @property
    def over(self) -> bool:
        """True when the run, or the part of it that this process does, should end."""
        return self.progress >= 1 or time.monotonic() - self.begun >= self.part


def rate(progress: float, step: int, *, peak: float, warmup: int, decay_from: float) -> float:
    """Learning rate: a linear warm-up in steps, then `peak`, then from `decay_from` of the time on a fall to 1 %."""
    fall = min(1.0, max(0.0, (progress - decay_from) / (1 - decay_from)))
    return peak * min(1.0, (step + 1) / warmup) * max(0.01, 1 - fall)


class Graphed:
    """A step without arguments that reads and writes fixed tensors. On a GPU it is replayed as one CUDA graph.

    The first calls run it as it is, which also lets libraries choose their algorithms; the next captures it. `reset`
    is called before the capture, to drop gradients that the graph must allocate itself. Graphs that never run at the
    same time may share a `pool` of memory.
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
