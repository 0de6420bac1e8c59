"""What calls return: frozen values in plain Python types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from voxcpm_grpc.audio import Encoding, WavWriter
from voxcpm_grpc.v1 import tts_pb2 as pb

ENCODINGS: Mapping[Encoding, Any] = {
    Encoding.PCM_S16LE: pb.AUDIO_ENCODING_PCM_S16LE,
    Encoding.PCM_F32LE: pb.AUDIO_ENCODING_PCM_F32LE,
    Encoding.WAV: pb.AUDIO_ENCODING_WAV,
}
BY_NUMBER: Mapping[int, Encoding] = {number: encoding for encoding, number in ENCODINGS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The stream as it really is, all choices resolved; `seed` is the one in use, also when the server drew it.

    `voice` is a preset's name, a stored voice's id, two ids joined by `+`, or `inline`; empty: the model chose it.
    """

    request_id: str
    encoding: Encoding
    sample_rate: int
    model: str
    model_fingerprint: str
    seed: int
    voice: str
    queue_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEvent:
    """A segment `started`, `finished` or was `dropped` at stream position `at_samples`.

    On the start, `text` is what is spoken and [input_start, input_end) its place in the turn, in code points. On the
    end, `finish_reason` is `complete`, `max_steps` or `interrupted`. `cut_reason` says why the segment ends there:
    `sentence`, `pause`, `clause`, `limit` or `flush`.
    """

    kind: str
    turn: int
    segment: int
    at_samples: int
    text: str
    input_start: int
    input_end: int
    finish_reason: str
    cut_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Flushed:
    """All audio of the flushed text ends at `at_samples`."""

    tag: str
    at_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupted:
    """No audio of the interrupted turn follows; sending stopped at `sent_samples`."""

    tag: str
    sent_samples: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chunk:
    """A piece of audio as it came, and what happened on it. `offset` counts samples since the stream began."""

    audio: bytes
    sequence: int
    offset: int
    sample_count: int
    sample_rate: int
    encoding: Encoding
    turn: int
    segment: int
    events: tuple[SegmentEvent, ...] = ()
    flushed: Flushed | None = None
    interrupted: Interrupted | None = None

    @property
    def samples(self) -> np.ndarray:
        """The audio as [sample_count]: float32 for `pcm_f32le`, int16 for the others."""
        return samples_of(self.audio, self.encoding, self.sample_count)

    @property
    def seconds(self) -> float:
        return self.sample_count / self.sample_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The account of a stream that ended well. Times are the server's, in seconds.

    The time to first audio counts from the acceptance of the first segment, and from the first text received.
    `finish_reason` is that of the last segment, or `idle` when the server ended a stream that had fallen silent.
    """

    finish_reason: str
    total_samples: int
    total_bytes: int
    turns: int
    segments: int
    input_chars: int
    generated_steps: int
    queue_seconds: float
    time_to_first_audio_seconds: float
    text_to_first_audio_seconds: float
    engine_seconds: float
    wall_seconds: float
    cached_prefix_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Speech:
    """A whole utterance: `samples` [n] mono, float32 if that was asked for and int16 otherwise."""

    samples: np.ndarray
    sample_rate: int
    header: Header
    summary: Summary | None = None

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate

    def save(self, path: str | Path) -> None:
        """Write a WAV file, of 16 bits or of floats as the samples are."""
        encoding = Encoding.PCM_F32LE if self.samples.dtype == np.float32 else Encoding.PCM_S16LE
        with Path(path).open("wb") as file, WavWriter(file, self.sample_rate, encoding) as wav:
            wav.write(self.samples.astype(self.samples.dtype.newbyteorder("<")).tobytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class Voice:
    """A prompt, reference or hifi voice; `id` is what `voice=` takes. One that comes with the model never expires.

    `reused` says that the same was stored already; `preview` is what the model heard, if that was asked for.
    """

    id: str
    kind: str
    name: str = ""
    transcript: str = ""
    prompt_seconds: float = 0.0
    reference_seconds: float = 0.0
    prompt_id: str = ""
    reference_id: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    content_digest: str = ""
    model_fingerprint: str = ""
    created: datetime | None = None
    expires: datetime | None = None
    reused: bool = False
    preview: Speech | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Latents:
    """A recording as the model sees it: float32 [frames, feat_dim], of the model with that fingerprint."""

    data: np.ndarray
    model_fingerprint: str
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one caller may ask for."""

    max_request_message_bytes: int
    max_buffered_text_chars: int
    max_segment_chars: int
    max_prompt_seconds: float
    max_reference_seconds: float
    max_upload_bytes: int
    max_inline_audio_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model behind a server, its rates and what may be asked of it.

    `samples_per_step` counts output samples; `presets` are the names of the model's own voices, `default_voice` the
    one that speaks where nothing else is asked for, if there is one.
    """

    model: str
    architecture: str
    model_fingerprint: str
    input_sample_rate: int
    output_sample_rate: int
    feat_dim: int
    patch_size: int
    samples_per_step: int
    encodings: tuple[str, ...]
    sample_rates: tuple[int, ...]
    inference_timesteps: tuple[int, ...]
    default_cfg_value: float
    default_timesteps: int
    max_model_len: int
    max_slots: int
    device: str
    dtype: str
    codec_dtype: str
    presets: tuple[str, ...]
    default_voice: str
    server_version: str
    limits: Limits


def samples_of(audio: bytes, encoding: Encoding, count: int) -> np.ndarray:
    """The last `count` samples of `audio`: before them there is at most a WAV header."""
    dtype = np.dtype("<f4" if encoding == Encoding.PCM_F32LE else "<i2")
    return np.frombuffer(audio, dtype, count=count, offset=len(audio) - count * dtype.itemsize)
