"""Requests and their results: frozen values with numpy arrays, shared by fronts and engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import msgspec
import numpy as np

from voxcpm_grpc.errors import FailedPrecondition, InvalidRequest, Reason

RISE_CHUNKS = 6
"""The limit of a request rises when a front has sent so many chunks, at the latest: about a second of speech."""
MAX_SEED = 2**63 - 1
MAX_DRAWN_SEED = 2**53 - 1
"""The largest seed that a server draws, which clients read exactly whose numbers are doubles, as in JavaScript."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling parameters of a segment. The defaults are the official ones. Raises InvalidRequest."""

    cfg_value: float = 2.0  # strength of the guidance, 0 to 10
    inference_timesteps: int = 10  # of the diffusion, 1 to 100
    temperature: float = 1.0  # scale of the noise, 0 to 2
    seed: int = 0
    min_steps: int = (
        2  # official rule: the speech can end from patch index min_steps + 1 on, with min_steps + 2 patches
    )
    max_steps: int | None = None  # limit of the patches; None: only the official limit by text length
    steps_per_token: float = 6.0  # of the text, from which on speech runs on; 10 more are the limit by text length
    max_silent_steps: int | None = None  # silent patches after speech that end it; None: any number

    def __post_init__(self) -> None:
        _check(0 <= self.cfg_value <= 10, "cfg_value", self.cfg_value, "it must be from 0 to 10")
        steps = self.inference_timesteps
        _check(1 <= steps <= 100, "inference_timesteps", steps, "it must be from 1 to 100")
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
        _check(
            0 < self.steps_per_token <= 100, "steps_per_token", self.steps_per_token, "it must be above 0, up to 100"
        )
        if self.max_silent_steps is not None:
            _check(self.max_silent_steps >= 1, "max_silent_steps", self.max_silent_steps, "it must be 1 or more")


def _check(ok: bool, name: str, value: float, rule: str) -> None:
    if not ok:  # written so that NaN fails every comparison
        raise InvalidRequest(f"{name} is {value}; {rule}", field=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A recording that the speech continues."""

    text: str  # the transcript
    latents: np.ndarray  # float32 [patches, P, D]


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Adapter:
    """A LoRA adapter. Its content is its identity: engines share memory and cached prompts by the fingerprint."""

    fingerprint: str  # a hash of its files
    directory: str  # with its files, where the engine runs
    name: str  # by which requests choose it
    source: str  # the operator's words for its place


def content_of(adapter: Adapter | None) -> str:
    """The fingerprint of an adapter; empty for none, the model alone."""
    return "" if adapter is None else adapter.fingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditioning:
    """The voice: a prompt to continue, a reference for the timbre, or both (HiFi); and the adapter that speaks."""

    prompt: Prompt | None = None
    reference: np.ndarray | None = None  # latents, float32 [patches, P, D]
    adapter: Adapter | None = None  # None: the model alone


class Priority(StrEnum):
    """The priority of a request for the slots and the memory of an engine."""

    INTERACTIVE = "interactive"  # somebody listens
    BATCH = "batch"  # runs when no interactive request needs its slot or its memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A segment of text to speak.

    The noise depends on seed, `turn` and `segment`, so that segments differ and a repeated request gives the same
    speech. `keep_latents` requests the generated latents at the end, with which the next segment can continue.
    `continues` means that audio of an earlier segment was sent, and a full queue accepts the request; `lead_seconds` of
    that audio are still to be played. A batch request gets a slot after all interactive ones, and gives it up to them.
    `log_id` is the request id of the RPC, for the log of the engine.
    """

    id: str
    text: str
    sampling: Sampling = field(default_factory=Sampling)
    conditioning: Conditioning = field(default_factory=Conditioning)
    turn: int = 0
    segment: int = 0
    keep_latents: bool = False
    continues: bool = False
    lead_seconds: float = 0.0
    log_id: str = ""
    priority: Priority = Priority.INTERACTIVE

    @property
    def is_batch(self) -> bool:
        return self.priority is Priority.BATCH


class FinishReason(StrEnum):
    """The reason for the end of a segment."""

    STOP = "stop"  # the model ended the speech
    MAX_STEPS = "max_steps"  # the limit of the request or of its text length
    SILENCE = "silence"  # the silent patches after speech that the request allows


# Events are tagged structs, so that messages between processes carry them as they are.


class Admitted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The request has a slot. Sent once, before its audio."""

    queue_seconds: float
    prompt_tokens: int  # positions of the prompt
    cached_tokens: int  # of these, found in the prefix cache


class AudioChunk(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The audio of one step."""

    index: int  # of the step, from 0
    samples: np.ndarray  # float32 [samples] at the model's output rate


class Finished(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The end of a request. Sent once, after its audio."""

    reason: FinishReason
    steps: int
    engine_seconds: float  # in a slot
    latents: np.ndarray | None = None  # float32 [steps, P, D], if the request keeps them
    ran_on: bool = False  # it has `steps_per_token` for its text or more, as speech that goes wrong often has


class CodecChunk(msgspec.Struct, frozen=True, tag=True):
    """A part of the result of a codec job. Parts come in order, and the last one is empty."""

    array: np.ndarray  # float32: latents [patches, P, D] or audio [samples]
    last: bool


Event = Admitted | AudioChunk | Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model of an engine, as fronts need to know it."""

    name: str
    architecture: str
    fingerprint: str  # a hash of the checkpoint; latents belong to models with the same one
    input_sample_rate: int
    output_sample_rate: int
    patch_size: int  # P, latent frames of a patch
    latent_dim: int  # D, channels of a latent frame
    samples_per_step: int  # output samples of one patch
    samples_per_patch: int  # input samples of one patch
    max_model_len: int  # positions of a sequence
    max_slots: int
    max_queue: int | None = None  # requests that may wait for a slot; None: the engine alone knows
    timesteps: tuple[int, ...]  # the counts that a request may use
    device: str
    dtype: str
    codec_dtype: str
    languages: tuple[str, ...] = ()  # that the model claims to speak, as BCP 47 tags; empty: it makes no claim
    takes_references: bool = True  # as voices, alone or with a prompt (hifi)
    takes_styles: bool = True

    def require_references(self, field: str) -> None:
        """Raise FailedPrecondition, for a field of a request, unless the model takes references."""
        if not self.takes_references:
            raise FailedPrecondition(
                f"references and hifi voices need VoxCPM2, and this server's model is {self.name}; "
                "use a prompt, which is a recording with its transcript",
                field=field,
                reason=Reason.REFERENCES_NOT_SUPPORTED,
                model=self.name,
            )

    def require_styles(self, field: str) -> None:
        """Raise FailedPrecondition, for a field of a request, unless the model takes styles."""
        if not self.takes_styles:
            raise FailedPrecondition(
                f"a style needs VoxCPM2, and this server's model is {self.name}; send the text without a style",
                field=field,
                reason=Reason.STYLES_NOT_SUPPORTED,
                model=self.name,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The load of an engine, and its counters since its start."""

    running: int = 0
    waiting: int = 0
    swapped: int = 0  # streams that have given their slot up, and wait for a higher limit or for a slot
    slots_used: int = 0
    slots_total: int = 0
    pages_used: int = 0
    pages_total: int = 0
    page_size: int = 0  # positions of a page
    steps: int = 0
    chunks: int = 0  # of audio that were made
    preemptions: int = 0
    swaps: int = 0  # of streams that have given their slot up
    prefix_hit_tokens: int = 0
    prefill_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
