"""Counters by which the programs of a launch find the last one of them, which completes a common result.

They are zero before and after a launch, so launches that follow each other can share them, and launches that run at the
same time cannot. Therefore a pool of graphs, which never run at the same time, has counters of its own, and so has each
stream for its other launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

COUNT = 1024

_of_capture: ContextVar[Tensor | None] = ContextVar("counters of the capture", default=None)
_of_streams: dict[torch.cuda.Stream | torch.device, Tensor] = {}


def counters(device: torch.device, count: int) -> Tensor:
    """`count` or more counters for the next launch on the current stream, int32. Raises ValueError if there are fewer.

    A capture that is no `kernels.graph.Graph` clears counters of its own before each launch.
    """
    if count > COUNT:
        raise ValueError(f"{count} counters are needed, there are {COUNT}")
    captured = _of_capture.get()
    if captured is not None:
        return captured
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return new_counters(device)
    key = torch.cuda.current_stream(device) if device.type == "cuda" else device
    if key not in _of_streams:
        _of_streams[key] = new_counters(device)
    return _of_streams[key]


def new_counters(device: torch.device) -> Tensor:
    return torch.zeros(COUNT, dtype=torch.int32, device=device)


@contextmanager
def captured_with(own: Tensor) -> Iterator[None]:
    """Within the block, `counters` returns `own`."""
    token = _of_capture.set(own)
    try:
        yield
    finally:
        _of_capture.reset(token)
