"""An engine that speaks with Flite, at a fixed pace. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.front.paced_engine import INFO, PacedEngine
from benchmarks.word_times.flite import RATE, VOICES, say
from voxcpm_grpc.events import History
from voxcpm_grpc.request import ModelInfo, Request

STEP_SECONDS = 0.16
SPEAKING = replace(
    INFO,
    name="flite",
    output_sample_rate=RATE,
    samples_per_step=int(STEP_SECONDS * RATE),
    languages=("en",),
)


@dataclass(slots=True)
class FliteEngine(PacedEngine):
    """Speaks texts with the voice whose number is the seed, modulo their number."""

    info: ModelInfo = SPEAKING
    _speech: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, request: Request, limit: int, history: History | None = None) -> None:
        PacedEngine.add(self, request, limit, history)
        samples = say(request.text, voice_of(request.sampling.seed or 0)).samples
        self._speech[request.id] = np.pad(samples, (0, -len(samples) % self.info.samples_per_step))
        self._streams[request.id].steps = len(self._speech[request.id]) // self.info.samples_per_step

    def cancel(self, id: str) -> None:
        PacedEngine.cancel(self, id)
        self._speech.pop(id, None)

    def samples(self, id: str, index: int, timed: np.ndarray) -> np.ndarray:
        size = self.info.samples_per_step
        part = self._speech[id][index * size : (index + 1) * size]
        if index + 1 == self._streams[id].steps:
            del self._speech[id]
        return part


def voice_of(seed: int) -> str:
    return VOICES[seed % len(VOICES)]


@dataclass(frozen=True, slots=True)
class MakeFlite:
    """Makes the engine in its process. `EngineProcess` pickles it.

    pace: seconds of speech that it makes in a second
    """

    pace: float = 1.0

    def __call__(self) -> FliteEngine:
        return FliteEngine(STEP_SECONDS / self.pace)
