"""The time of a training run: a budget in seconds, from which the learning rate follows, and steps as CUDA graphs."""

import argparse
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


def add_times(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Add the arguments from which `budget` follows. seconds: default of the training time."""
    parser.add_argument("--seconds", type=float, default=seconds, help="training time, over all parts")
    parser.add_argument("--until", type=float, help="Unix time at which training ends, instead of --seconds")
    parser.add_argument("--part", type=float, help="end this process after so many seconds; a later call continues")
    parser.add_argument("--pause", type=float, help="Unix time at which to end this process; a later call continues")


def budget(args: argparse.Namespace, spent: float) -> Budget:
    """The budget of the arguments of `add_times`, from now on. spent: seconds of the parts before this one."""
    now = time.time()
    seconds = args.seconds if args.until is None else spent + max(1.0, args.until - now)
    parts = [args.part] if args.part is not None else []
    parts += [max(0.0, args.pause - now)] if args.pause is not None else []
    return Budget(seconds, spent, min(parts, default=None))


def rate(progress: float, step: int, *, peak: float, warmup: int, decay_from: float) -> float:
    """The learning rate: a linear warm-up in steps, then `peak`, then from `decay_from` of the time a decay to 1 %.

    step: steps of the optimizers, which begin again where a run continues without their state
    """
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
