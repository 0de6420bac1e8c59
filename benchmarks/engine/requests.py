"""The requests of a burst to an engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.measuring.texts import text
from voxcpm_grpc.request import Adapter, Conditioning, ModelInfo, Request, Sampling, VoicePart


def requests(
    first: int, streams: int, *, steps: int, timesteps: int | None, chars: int, speaker: str = ""
) -> list[Request]:
    """Requests of exactly `steps` steps, with texts that are numbered from `first` on.

    timesteps: flow-matching steps, None for those of the model. speaker: a voice of the model, "" for none.
    """
    sampling = Sampling(min_steps=steps, max_steps=steps, inference_timesteps=timesteps)
    voice = Conditioning(speaker=speaker)
    return [
        Request(id=str(serial), text=text(serial, chars), sampling=sampling, conditioning=voice)
        for serial in range(first, first + streams)
    ]


def with_prompt(request: Request, steps: int, info: ModelInfo) -> Request:
    """The request behind a prompt of random latents that is `steps` steps long."""
    assert info.latents is not None
    latents = np.random.default_rng(int(request.id)).standard_normal((steps, info.latents.frames, info.latents.dim))
    content = dict.fromkeys(info.tracks, latents.astype(np.float32))
    prompt = VoicePart(content=content, tracks=info.tracks, text=f"{request.text} ")
    return replace(request, conditioning=Conditioning(prompt=prompt))


def with_adapter(request: Request, adapter: Adapter) -> Request:
    """The request, spoken with an adapter."""
    return replace(request, conditioning=replace(request.conditioning, adapter=adapter))
