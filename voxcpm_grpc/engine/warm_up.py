"""The warm-up of an engine: it compiles and allocates what its first users would wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Protocol

import numpy as np

from voxcpm_grpc.request import Conditioning, ModelInfo, Request, Role, Sampling, VoicePart

STEPS = 2
CODEC_SECONDS = 2.0


class Warmed(Protocol):
    """The part of an engine that a warm-up uses."""

    info: ModelInfo

    @property
    def busy(self) -> bool: ...
    def add(self, request: Request, limit: int) -> None: ...
    def encode(self, id: str, waveform: np.ndarray, role: Role) -> None: ...
    def decode(self, id: str, content: Mapping[str, np.ndarray]) -> None: ...
    def step(self) -> object: ...


def warm_up(engine: Warmed, timesteps: Iterable[int], *, streams: int, patches: int) -> float:
    """Run the codec and, for each count of timesteps, `streams` requests. Returns the longest step in seconds.

    The first of the requests has a voice of `patches` patches.
    """
    waveform, speech = _codec_inputs(engine.info)
    engine.encode("warm-up encode", waveform, Role.PROMPT)
    engine.decode("warm-up decode", speech.content)
    slowest = 0.0
    for count in timesteps:
        for request in _requests(engine.info, streams=streams, timesteps=count, patches=patches):
            engine.add(request, STEPS)
        while engine.busy:
            started = monotonic()
            engine.step()
            slowest = max(slowest, monotonic() - started)
    return slowest


def _codec_inputs(info: ModelInfo) -> tuple[np.ndarray, VoicePart]:
    """Silence to encode, float32 [samples], and speech to decode."""
    samples = int(CODEC_SECONDS * info.input_sample_rate)
    return np.zeros(samples, np.float32), _voice(info, samples // info.samples_per_patch)


def _requests(info: ModelInfo, *, streams: int, timesteps: int, patches: int) -> list[Request]:
    """As many requests as `streams`, of STEPS steps each. The first has a voice of `patches` patches."""
    sampling = Sampling(inference_timesteps=timesteps, min_steps=0, max_steps=STEPS)
    part = _voice(info, patches)
    prompt = Conditioning(prompt=replace(part, text="Zero. "))
    voices = [Conditioning(reference=part) if info.can("reference") else prompt] + [Conditioning()] * (streams - 1)
    return [
        Request(id=f"warm-up {number}", text="One, two.", sampling=sampling, conditioning=voice)
        for number, voice in enumerate(voices)
    ]


def _voice(info: ModelInfo, patches: int) -> VoicePart:
    assert info.latents is not None
    latents = np.zeros((patches, info.latents.frames, info.latents.dim), np.float32)
    return VoicePart(content=dict.fromkeys(info.tracks, latents), tracks=info.tracks)
