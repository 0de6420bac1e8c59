"""What a caller wants and what it gets: frozen values, numpy at most, shared by the front and the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
import numpy as np

from voxcpm_grpc.errors import InvalidRequest

MAX_SEED = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How one segment is generated. Defaults are the official ones.

    `min_steps` follows the official rule: a stop is honoured from patch index min_steps + 1 on, so at least
    min_steps + 2 patches are made. `max_steps` None means the official cap by text length alone.
    """

    cfg_value: float = 2.0
    inference_timesteps: int = 10
    temperature: float = 1.0
    seed: int = 0
    min_steps: int = 2
    max_steps: int | None = None

    def __post_init__(self) -> None:
        _check(0 <= self.cfg_value <= 10, "cfg_value", self.cfg_value, "it must be from 0 to 10")
        _check(1 <= self.inference_timesteps <= 100, "inference_timesteps", self.inference_timesteps, "1 to 100")
        _check(0 <= self.temperature <= 2, "temperature", self.temperature, "it must be from 0 to 2")
        _check(0 <= self.seed <= MAX_SEED, "seed", self.seed, "it must be from 0 to 2**63 - 1")
        _check(self.min_steps >= 0, "min_steps", self.min_steps, "it must be 0 or more")
        if self.max_steps is not None:
            _check(self.max_steps >= 1, "max_steps", self.max_steps, "it must be 1 or more")
            _check(
                self.min_steps <= self.max_steps,
                "min_steps",
                self.min_steps,
                f"it must not exceed max_steps, {self.max_steps}",
            )


def _check(ok: bool, name: str, value: float, rule: str) -> None:
    if not ok:  # written so that NaN fails every comparison
        raise InvalidRequest(f"{name} is {value}; {rule}", field=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A recording to continue: its latents float32 [patches, P, D] and what is said in it."""

    text: str
    latents: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioning:
    """The voice: a prompt is continued, a reference (float32 [patches, P, D]) gives the timbre; both is HiFi."""

    prompt: Prompt | None = None
    reference: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One segment of text to speak.

    `turn` and `segment` enter the noise beside the seed, so that segments differ and a replay does not.
    `keep_latents` asks for the generated latents at the end, for the next segment's continuity. `continues` says that
    its listener has heard a segment before: it waits ahead of newcomers, and a full queue does not refuse it.
    """

    id: str
    text: str
    sampling: Sampling = field(default_factory=Sampling)
    conditioning: Conditioning = field(default_factory=Conditioning)
    turn: int = 0
    segment: int = 0
    keep_latents: bool = False
    continues: bool = False


class FinishReason(StrEnum):
    STOP = "stop"  # the model said so
    MAX_STEPS = "max_steps"  # the cap of the request or of its text length


# Events are tagged structs, so that messages between processes carry them as they are.


class Admitted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The request has a slot. Sent once, before its audio."""

    queue_seconds: float
    prompt_tokens: int
    cached_tokens: int


class AudioChunk(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Audio of one step: float32 [samples] at the model's output rate."""

    index: int
    samples: np.ndarray


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The last word on a request. `latents` float32 [steps, P, D] if the request kept them."""

    reason: FinishReason
    steps: int
    engine_seconds: float
    latents: np.ndarray | None = None


class CodecChunk(msgspec.Struct, frozen=True, tag=True):
    """Part of a codec job's result: latents [patches, P, D] or audio [samples], float32, in order."""

    array: np.ndarray
    last: bool


Event = Admitted | AudioChunk | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a front must know of the model behind an engine."""

    name: str
    architecture: str
    fingerprint: str
    input_sample_rate: int
    output_sample_rate: int
    patch_size: int
    latent_dim: int
    samples_per_step: int  # output samples of one patch
    samples_per_patch: int  # input samples of one patch
    max_model_len: int
    max_slots: int
    timesteps: tuple[int, ...]
    device: str
    dtype: str
    codec_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """An engine's load and counters since its start."""

    running: int = 0
    waiting: int = 0
    slots_used: int = 0
    slots_total: int = 0
    pages_used: int = 0
    pages_total: int = 0
    steps: int = 0
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    prefill_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
