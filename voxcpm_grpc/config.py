"""Every setting, in one typed schema, read once: TOML file < environment (VOXCPM_...) < flags.

Nested settings are spelled `[engine] max_slots = 8` in TOML, `VOXCPM_ENGINE__MAX_SLOTS=8` in the environment and
`--engine.max-slots 8` as a flag. An unknown key is an error in all three.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineSettings(_Frozen):
    """One engine: a model on a device."""

    device: str = Field("auto", description="auto, cpu, cuda or cuda:N; auto takes a GPU if there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="compute type; auto is bfloat16 on CUDA and float32 on a CPU"
    )
    attention: Literal["auto", "reference", "triton", "flash"] = Field("auto", description="attention kernels")
    timesteps: tuple[Positive, ...] = Field((4, 6, 10), description="flow-matching step counts that requests may ask")
    max_slots: Positive | None = Field(None, description="streams that speak at once; default 64 on CUDA, 8 on a CPU")
    max_queue: Annotated[int, Field(ge=0)] = Field(256, description="requests that may wait for a slot")
    max_model_len: Positive | None = Field(None, description="positions of one stream; default: the model's own limit")
    page_size: Literal[16, 32] = Field(16, description="KV positions of a page")
    kv_positions: Positive | None = Field(
        None, description="KV positions in all; default: what the device's memory allows"
    )
    gpu_memory_utilization: float = Field(
        0.85, gt=0, le=1, description="share of the GPU's memory that the engine may fill in all"
    )
    prefill_tokens: Positive = Field(512, description="prompt positions entered between two steps, at most")
    prefix_caching: bool = Field(True, description="share the pages of equal prompt beginnings")
    threads: Positive | None = Field(None, description="CPU threads of the engine; default: PyTorch's own choice")
    recorded_noise: Path | None = Field(
        None, description="a .npy of float32 [steps, D, P] that replaces the noise generator; for parity tests"
    )


class LimitSettings(_Frozen):
    """What one caller may ask of the front."""

    max_message_bytes: Positive = Field(8 << 20, description="largest request message")
    max_inline_audio_bytes: Positive = Field(6 << 20, description="largest inline recording")
    max_upload_bytes: Positive = Field(32 << 20, description="largest uploaded recording")
    max_prompt_seconds: Seconds = Field(60.0, description="longest prompt recording")
    max_reference_seconds: Seconds = Field(60.0, description="longest reference recording")
    max_text_chars: Positive = Field(20_000, description="text that may wait in one stream")
    max_segment_chars: Positive = Field(400, description="longest segment; longer sentences are split")
    max_transcript_chars: Positive = Field(2_000, description="longest transcript of a prompt")
    max_style_chars: Positive = Field(500, description="longest voice description")
    max_lead_seconds: Seconds = Field(30.0, description="audio that may wait for a client that does not read")
    max_queue_seconds: Seconds = Field(30.0, description="longest wait for a slot")
    max_carry_seconds: Seconds = Field(20.0, description="speech carried from segment to segment")
    max_streams: Positive = Field(256, description="streams open at once")
    upload_idle_seconds: Seconds = Field(30.0, description="longest silence of a client inside an upload")


class VoiceSettings(_Frozen):
    """Where voices are kept, and for how long."""

    directory: Path | None = Field(None, description="voice store; default: the user's data directory")
    ttl_seconds: Seconds = Field(30 * 86400.0, description="life of a voice since its last use")
    max_voices: Positive = Field(10_000, description="voices kept at once")


class Settings(_Frozen):
    """Everything a server is told."""

    model: str = Field("demo", description="demo, a directory, or a Hugging Face repository id")
    revision: str | None = Field(None, description="branch, tag or commit of the repository")
    cache_dir: Path | None = Field(None, description="download cache; default: Hugging Face's own")
    listen: str = Field("127.0.0.1:50051", description="address to serve on; port 0 takes a free one")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe log lines shown")
    decode_workers: Positive = Field(2, description="processes that decode and resample uploads")
    drain_seconds: Annotated[float, Field(ge=0)] = Field(30.0, description="grace for open streams at shutdown")
    engine: EngineSettings = Field(EngineSettings(), description="the engine")
    limits: LimitSettings = Field(LimitSettings(), description="limits of a caller")
    voices: VoiceSettings = Field(VoiceSettings(), description="the voice store")
