"""The warm-up of an engine: it compiles and allocates what its first users would wait for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Protocol

import numpy as np

from voxcpm_grpc.request import ModelInfo, Request, Role

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


def warm_up(engine: Warmed, rounds: Iterable[Sequence[Request]]) -> float:
    """Run the codec, and the requests of each round for STEPS steps. Returns the longest step in seconds.

    The codec decodes the voice of the first request.
    """
    samples, slowest = int(CODEC_SECONDS * engine.info.input_sample_rate), 0.0
    engine.encode("warm-up encode", np.zeros(samples, np.float32), Role.PROMPT)
    for number, requests in enumerate(rounds):
        voice = requests[0].conditioning
        if not number and (part := voice.reference or voice.prompt):
            speech = part.first(samples // engine.info.input_samples_per_step)
            engine.decode("warm-up decode", speech.content)
        for request in requests:
            brief = replace(request.sampling, min_steps=0, max_steps=STEPS)
            engine.add(replace(request, id=f"warm-up {request.id}", sampling=brief), STEPS)
        while engine.busy:
            started = monotonic()
            engine.step()
            slowest = max(slowest, monotonic() - started)
    return slowest
