"""The first requests of an engine, which nobody hears."""

from __future__ import annotations

from collections.abc import Iterable
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from voxcpm_grpc.request import Conditioning, Request, Sampling

if TYPE_CHECKING:
    from voxcpm_grpc.engine.engine import Engine

STEPS = 2
CODED_SECONDS = 2.0


def exercise(engine: Engine, *, patches: int, streams: int, timesteps: Iterable[int]) -> float:
    """So many streams with each timestep count, one of them in a voice of that many patches; encoding and decoding.

    Returns the seconds of the longest step.
    """
    info = engine.info
    reference = np.zeros((patches, info.patch_size, info.latent_dim), np.float32)
    coded = int(CODED_SECONDS * info.input_sample_rate)
    engine.encode("warm-up encode", np.zeros(coded, np.float32), pad_left=True)
    engine.decode("warm-up decode", reference[: coded // info.samples_per_patch])
    slowest = 0.0
    for count in timesteps:
        sampling = Sampling(inference_timesteps=count, min_steps=0, max_steps=STEPS)
        for number in range(streams):
            voice = Conditioning() if number else Conditioning(reference=reference)
            request = Request(id=f"warm-up {number}", text="One, two.", sampling=sampling, conditioning=voice)
            engine.add(request, STEPS)
        while engine.busy:
            began = monotonic()
            engine.step()
            slowest = max(slowest, monotonic() - began)
    return slowest
