"""The first requests of an engine, which nobody hears."""

from __future__ import annotations

from time import monotonic

import numpy as np

from voxcpm_grpc.engine.desk import EngineLike
from voxcpm_grpc.request import Conditioning, Request, Sampling

STEPS = 3
CODED_SECONDS = 2.0


def exercise(engine: EngineLike, patches: int) -> float:
    """Speak with every timestep count, once in a voice of that many patches, encode and decode.

    Returns the seconds of the longest step.
    """
    info = engine.info
    reference = np.zeros((patches, info.patch_size, info.latent_dim), np.float32)
    coded = int(CODED_SECONDS * info.input_sample_rate)
    engine.encode("warm-up encode", np.zeros(coded, np.float32), pad_left=True)
    engine.decode("warm-up decode", reference[: coded // info.samples_per_patch])
    slowest = 0.0
    for timesteps in info.timesteps:  # one after the other, for there may be no more than one slot
        request = Request(
            id=f"warm-up {timesteps}",
            text="One, two.",
            sampling=Sampling(inference_timesteps=timesteps, min_steps=0, max_steps=STEPS),
            conditioning=Conditioning(reference=reference),
        )
        engine.add(request, STEPS)
        while engine.busy:
            began = monotonic()
            engine.step()
            slowest = max(slowest, monotonic() - began)
    return slowest
