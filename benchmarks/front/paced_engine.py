"""An engine without a model, which makes a chunk for every stream at a fixed rate. Needs no PyTorch.

Each chunk carries the time at which it was made in its first two samples. Tests of the web page use the engine, too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from voxcpm_grpc.abilities import Abilities, Ends, Option
from voxcpm_grpc.engine.scheduling.adapters import Adapters
from voxcpm_grpc.errors import VoxCPMError
from voxcpm_grpc.events import Admitted, AudioChunk, CodecChunk, Event, Finished, FinishReason, History
from voxcpm_grpc.request import ModelInfo, Request, Role, Stats

INFO = ModelInfo(
    name="paced",
    architecture="paced",
    fingerprint="0" * 32,
    input_sample_rate=16000,
    output_sample_rate=48000,
    samples_per_step=7680,
    input_samples_per_step=2560,
    max_model_len=8192,
    max_slots=1024,
    options=(
        Option(name="cfg_value", default=2.0, low=0, high=10, rule="it must be from 0 to 10"),
        Option(name="inference_timesteps", default=10, low=1, high=100, rule="it must be from 1 to 100"),
        Option(name="temperature", default=1.0, low=0, high=2, rule="it must be from 0 to 2"),
    ),
    abilities=Abilities(),
    tracks=("latents",),
    ends=Ends(min_steps=2, steps_per_token=6.0),
    device="cpu",
    dtype="float32",
    codec_dtype="float32",
)
TIME_HZ = 10_000  # resolution of the time in a chunk
STEP = bytes(512)  # as VoxCPM2 has for each step, see `SpeechModel.step_bytes`
DIGIT = 1 << 15  # each of the two samples holds 15 bits, so that none is negative as 16-bit PCM
CHARACTERS_A_SECOND = 15  # of the speech of a text, within the steps that the request allows


@dataclass(slots=True)
class _Stream:
    request: Request
    limit: int
    steps: int  # chunks of the whole speech
    made: int = -1  # chunks; -1 before admission
    resumed: int = 0  # chunks of another engine

    @property
    def paused(self) -> bool:
        return self.made >= self.limit


@dataclass(slots=True)
class PacedEngine:
    """An `EngineLike` that makes a chunk for every stream below its limit, all in one step, every `step_seconds`."""

    step_seconds: float
    info: ModelInfo = INFO
    adapters: Adapters = field(default_factory=lambda: Adapters(0, lambda directory: None))
    _streams: dict[str, _Stream] = field(default_factory=dict)
    _due: float = 0.0

    @property
    def busy(self) -> bool:
        return any(not stream.paused for stream in self._streams.values())

    def warm_up(self) -> float:
        return self.step_seconds

    def check(self, request: Request) -> None:
        """Every request fits."""

    def add(self, request: Request, limit: int, history: History | None = None) -> None:
        step_seconds = self.info.step_seconds
        steps = max(request.sampling.min_steps or 0, math.ceil(len(request.text) / CHARACTERS_A_SECOND / step_seconds))
        stream = _Stream(request, limit, min(steps, request.sampling.max_steps or steps))
        stream.resumed = 0 if history is None else history.chunks
        self._streams[request.id] = stream

    def allow(self, id: str, limit: int) -> None:
        if stream := self._streams.get(id):
            stream.limit = max(stream.limit, limit)

    def append(self, id: str, text: str, *, last: bool) -> None:
        raise NotImplementedError("fronts send whole texts")

    def paused(self, id: str) -> bool:
        return id in self._streams and self._streams[id].paused

    def needs_text(self, id: str) -> bool:
        return False

    def cancel(self, id: str) -> None:
        self._streams.pop(id, None)

    def encode(self, id: str, waveform: np.ndarray, role: Role) -> None:
        raise NotImplementedError

    def decode(self, id: str, content: Mapping[str, np.ndarray]) -> None:
        raise NotImplementedError

    def collect(self) -> None:
        """Wait until the next step is due; steps that were missed are skipped."""
        if self._streams:
            now = time.perf_counter()
            self._due = max(self._due + self.step_seconds, now)
            time.sleep(self._due - now)

    def stats(self) -> Stats:
        return Stats(running=len(self._streams))

    def samples(self, id: str, index: int, timed: np.ndarray) -> np.ndarray:
        """The audio of a chunk of a stream. timed: audio that tells when the step was made"""
        return timed

    def step(self) -> list[tuple[str, Event | CodecChunk | VoxCPMError]]:
        timed = timed_samples(self.info.samples_per_step)
        results: list[tuple[str, Event | CodecChunk | VoxCPMError]] = []
        for id, stream in list(self._streams.items()):
            if stream.made < 0:
                results.append((id, Admitted(queue_seconds=0.0, prompt_tokens=8, cached_tokens=0)))
                stream.made = stream.resumed
            elif not stream.paused:
                samples = self.samples(id, stream.made, timed)
                results.append((id, AudioChunk(index=stream.made, samples=samples, steps=STEP)))
                stream.made += 1
                if stream.made == stream.steps:
                    del self._streams[id]
                    cut = stream.made == stream.request.sampling.max_steps
                    reason = FinishReason.MAX_STEPS if cut else FinishReason.STOP
                    results.append((id, Finished(reason=reason, steps=stream.made, engine_seconds=0.0)))
        return results


@dataclass(frozen=True, slots=True)
class MakePaced:
    """Makes the engine in its process. `EngineProcess` pickles it."""

    step_seconds: float
    info: ModelInfo = INFO

    def __call__(self) -> PacedEngine:
        return PacedEngine(self.step_seconds, self.info)


def timed_samples(count: int) -> np.ndarray:
    """A tone whose first two samples hold the present time, exact to 16 bits: float32 [count]."""
    samples = np.sin(np.arange(count, dtype=np.float32) / 20) / 2
    now = int(time.perf_counter() * TIME_HZ) % DIGIT**2
    samples[:2] = now // DIGIT / DIGIT, now % DIGIT / DIGIT
    return samples


def age(audio: bytes) -> float:
    """Seconds since the last chunk of a message was made, by the clock of the host. audio: its 16-bit PCM."""
    high, low = np.frombuffer(audio, "<i2", 2, len(audio) - 2 * INFO.samples_per_step).tolist()
    return (time.perf_counter() * TIME_HZ - high * DIGIT - low) % DIGIT**2 / TIME_HZ
