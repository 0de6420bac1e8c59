"""The description of a server's model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest requests that the server accepts."""

    max_request_message_bytes: int
    """Bytes of one request message."""

    max_buffered_text_chars: int
    """Text of one stream that may wait to be spoken, in Unicode code points."""

    max_segment_chars: int
    """Longest segment in Unicode code points; longer sentences are split."""

    max_prompt_seconds: float
    """Longest prompt recording in seconds."""

    max_reference_seconds: float
    """Longest reference recording in seconds."""

    max_upload_bytes: int
    """Bytes of one uploaded recording."""

    max_inline_audio_bytes: int
    """Bytes of one recording sent with a call of `speak`, `say` or `session`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The model of a server, its audio formats and its limits."""

    model: str
    """Name of the model."""

    architecture: str
    """Model family: `voxcpm2`, `voxcpm` for VoxCPM1.5 and VoxCPM-0.5B, or `qwen3_tts`."""

    model_fingerprint: str
    """Digest of the model's weights and configuration. Stored voices and latents belong to one fingerprint."""

    input_sample_rate: int
    """Rate in Hz at which the model reads recordings. The server resamples recordings of other rates."""

    output_sample_rate: int
    """Rate in Hz at which the model makes audio, and the default of the option `sample_rate`."""

    feat_dim: int
    """Size of one latent frame; 0 for a model without latents."""

    patch_size: int
    """Latent frames of one step."""

    samples_per_step: int
    """Samples of one step at `output_sample_rate`."""

    encodings: tuple[str, ...]
    """Accepted values of the option `format`."""

    sample_rates: tuple[int, ...]
    """Accepted values of the option `sample_rate`, in Hz."""

    inference_timesteps: tuple[int, ...]
    """Accepted values of the option `timesteps`."""

    default_cfg_value: float
    """Default of the option `cfg_value`."""

    default_timesteps: int
    """Default of the option `timesteps`."""

    sampling_fields: tuple[str, ...]
    """Options of the sampling that the model has; others are refused. Empty of servers that do not say."""

    default_sampling: dict[str, float]
    """Defaults of these options by name. `seed` and `max_steps` have none."""

    default_max_silence: float | None
    """Default of the option `max_silence` in seconds. None if any silence may follow."""

    max_model_len: int
    """Positions that text, prompt, reference and speech of one segment may take together."""

    max_slots: int
    """Streams that one engine of the server can speak at the same time."""

    device: str
    """Device of the model, such as `cuda` or `cpu`."""

    dtype: str
    """Data type in which the language models and the diffusion compute."""

    codec_dtype: str
    """Data type in which the decoder of the codec computes."""

    presets: tuple[str, ...]
    """Names of the voices that come with the model, for the option `voice`."""

    default_voice: str
    """Preset of calls that give neither a voice nor a style. Empty if there is none; then the model chooses a
    voice."""

    languages: tuple[str, ...]
    """Languages that the model claims to speak, as BCP 47 tags. Empty if it makes no claim."""

    voice_kinds: tuple[str, ...]
    """Kinds of voices that the model speaks with, of `prompt`, `reference`, `hifi`, and `speaker`, which are built into
    the model. Models before VoxCPM2 have prompts alone."""

    styles: bool
    """True if the option `style` can be given. Models before VoxCPM2 take none."""

    speech_languages: tuple[str, ...]
    """Languages that the option `speech_language` may name, as BCP 47 tags. Empty if the model takes none."""

    text_streaming: bool
    """True if the model can speak a text that has yet to arrive."""

    needs_voice: bool
    """True if the model chooses no voice itself, so that a call needs one, or the server a default voice."""

    loras: tuple[str, ...]
    """LoRA adapters that the options `lora` may name."""

    server_version: str
    """Version of voxcpm-grpc on the server."""

    limits: Limits
    """The largest requests that the server accepts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One of the models of a server. `model_info` has the rest of its description."""

    name: str
    """Name of the model, for the option `model`."""

    is_default: bool
    """True for the model of calls that name none."""

    serving: bool
    """True if an engine of the model takes requests."""

    architecture: str
    """Model family, such as `voxcpm2`."""

    model_fingerprint: str
    """Digest of the model's weights and configuration, as in `ModelInfo`."""

    output_sample_rate: int
    """Rate in Hz at which the model makes audio."""

    presets: tuple[str, ...]
    """Names of the voices that come with the model."""

    default_voice: str
    """Preset of calls that give neither a voice nor a style. Empty if there is none."""

    languages: tuple[str, ...]
    """Languages that the model claims to speak, as BCP 47 tags. Empty if it makes no claim."""

    engines: int
    """Engines of the model, those that start or restart included."""

    engines_ready: int
    """Engines of the model that take requests."""
