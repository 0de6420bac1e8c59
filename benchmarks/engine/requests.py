"""The requests of a burst to an engine."""

from __future__ import annotations

from benchmarks.measuring.texts import text
from voxcpm_grpc.request import Request, Sampling


def requests(first: int, streams: int, *, steps: int, timesteps: int, chars: int) -> list[Request]:
    """Requests of exactly `steps` steps, with texts that are numbered from `first` on."""
    sampling = Sampling(min_steps=steps, max_steps=steps, inference_timesteps=timesteps)
    return [
        Request(id=str(serial), text=text(serial, chars), sampling=sampling) for serial in range(first, first + streams)
    ]
