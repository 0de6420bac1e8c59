"""Every setting, in one typed schema, and the engines that they ask for. Read by `sources`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from voxcpm_grpc.errors import StartupError

Positive = Annotated[int, Field(gt=0)]
MAX_SECONDS = 100 * 365 * 86400.0
"""The longest time that anything here may take: what counts from now stays a date that all can write."""
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Share = Annotated[float, Field(ge=0, le=1024)]


DEVICES = re.compile(r"auto|cpu(:[1-9]\d*)?|(cuda:)?\d+")


def _device(text: str) -> str:
    if not DEVICES.fullmatch(text):
        raise PydanticCustomError("device", "each may be auto, the number of a GPU, cpu, or cpu:N for N engines on it")
    return text


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineSettings(_Frozen):
    """One engine: a model on a device."""

    device: str = Field(default="auto", description="auto, cpu, cuda or cuda:N; auto takes a GPU if there is one")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="compute type; auto is bfloat16 on CUDA and float32 on a CPU"
    )
    codec_dtype: Literal["auto", "float32", "float16"] = Field(
        default="auto",
        description="what the codec multiplies to make audio; auto is float16 beside bfloat16, else float32",
    )
    attention: Literal["auto", "reference", "triton", "flash"] = Field(default="auto", description="attention kernels")
    timesteps: tuple[Positive, ...] = Field(
        default=(4, 6, 10), min_length=1, description="flow-matching step counts that requests may ask"
    )
    max_slots: Positive | None = Field(
        default=None,
        description="streams that speak at once; default 128 on a GPU of 40 GB or more, else 64, and 8 on a CPU",
    )
    max_queue: Annotated[int, Field(ge=0)] = Field(default=256, description="requests that may wait for a slot")
    max_model_len: Positive | None = Field(
        default=None, description="positions of one stream; default: the model's own limit"
    )
    page_size: Literal[16, 32] = Field(default=16, description="KV positions of a page")
    kv_positions: Positive | None = Field(
        default=None, description="KV positions in all; default: what the device's memory allows"
    )
    gpu_memory_utilization: float = Field(
        default=0.85, gt=0, le=1, description="share of the GPU's memory that the engine may fill in all"
    )
    prefill_tokens: Positive | None = Field(
        default=None,
        description="prompt positions entered between two steps, at most; default 2048 to 4096 on CUDA, the more the "
        "more wait, 256 on a CPU",
    )
    prefix_caching: bool = Field(default=True, description="share the pages of equal prompt beginnings")
    graphs: bool = Field(default=True, description="replay steps as CUDA graphs; false runs the same code eagerly")
    persistent: bool = Field(
        default=True,
        description="run the diffusion of a stream alone as one kernel, 0.4 GiB, where model and GPU (Hopper) fit it",
    )
    threads: Positive | None = Field(
        default=None,
        description="CPU threads of the engine; default: 1 for a small model, else its share of PyTorch's own choice",
    )
    recorded_noise: Path | None = Field(
        default=None, description="a .npy of float32 [steps, D, P] that replaces the noise generator; for parity tests"
    )


class SupervisionSettings(_Frozen):
    """When an engine counts as lost, and what follows."""

    silence_seconds: Annotated[Seconds, Field(ge=0.75)] = Field(  # three signs: one of them may come late
        default=1.5, description="longest silence of an engine's process, which gives a sign of life every 0.25 s"
    )
    step_seconds: Seconds | None = Field(
        default=None,
        description="longest step of an engine; default: 5 times the longest one when it warmed up, 20 times on a CPU, "
        "at least 1.5",
    )
    restart_seconds: Seconds = Field(default=30.0, description="longest pause between two starts of an engine")
    restart_limit: Positive = Field(
        default=10, description="starts that fail in a row until an engine is given up; without any the server ends"
    )


class RaySettings(_Frozen):
    """Engines on the nodes of a Ray cluster, and how many."""

    address: str | None = Field(
        default=None,
        description="the cluster that this host belongs to: auto, or HOST:PORT of its head; default: start one here",
    )
    min_engines: Positive = Field(default=1, description="engines that are always there; the server starts with them")
    max_engines: Positive | None = Field(
        default=None, description="engines there may be while there is work; default: as many as min_engines"
    )
    grow_seconds: Seconds = Field(default=5.0, description="wait for a slot that calls for another engine")
    shrink_seconds: Seconds = Field(default=300.0, description="time for which an engine was not needed until it goes")
    cpus_per_engine: Share = Field(default=1.0, description="CPUs of a node that Ray sets aside for an engine")
    gpus_per_engine: Share | None = Field(
        default=None, description="GPUs likewise; default: 1, or 0 if engine.device is cpu or no node has any"
    )


class LimitSettings(_Frozen):
    """What callers may ask of a front."""

    max_message_bytes: Positive = Field(default=8 << 20, description="largest request message")
    max_inline_audio_bytes: Positive = Field(default=6 << 20, description="largest inline recording")
    max_upload_bytes: Positive = Field(default=32 << 20, description="largest uploaded recording")
    max_upload_bytes_total: Positive = Field(
        default=512 << 20, description="recordings held in memory for all callers together, until they are encoded"
    )
    max_prompt_seconds: Seconds = Field(default=60.0, description="longest prompt recording")
    max_reference_seconds: Seconds = Field(default=60.0, description="longest reference recording")
    max_text_chars: Positive = Field(default=20_000, description="text that may wait in one stream")
    max_segment_chars: Positive = Field(default=400, description="longest segment; longer sentences are split")
    max_transcript_chars: Positive = Field(default=2_000, description="longest transcript of a prompt")
    max_style_chars: Positive = Field(default=500, description="longest voice description")
    max_lead_seconds: Seconds = Field(default=30.0, description="audio that may wait for a client that does not read")
    max_queue_seconds: Seconds = Field(default=30.0, description="longest wait for a slot")
    max_carry_seconds: Seconds = Field(default=20.0, description="speech carried from segment to segment")
    max_streams: Positive = Field(default=256, description="streams open at once")
    stream_idle_seconds: Seconds = Field(
        default=300.0, description="longest silence of a client for which nothing is left to speak"
    )
    upload_idle_seconds: Seconds = Field(default=30.0, description="longest silence of a client inside an upload")


class VoiceSettings(_Frozen):
    """Where voices are kept, and for how long."""

    url: str | None = Field(
        default=None,
        description="voice store, which servers may share: a folder, or a URL such as s3://bucket/voices; default: the "
        "user's data directory",
    )
    default: str = Field(
        default="auto",
        description="voice of streams that name neither a voice nor a style: auto, the preset that the model marks as "
        "default, if there is one; none, the model chooses; or a preset's name",
    )
    ttl_seconds: Seconds = Field(default=30 * 86400.0, description="life of a voice since its last use")
    max_voices: Positive = Field(
        default=10_000,
        description="voices kept at once; servers that share a store see at a sweep what the others added",
    )
    cache_bytes: Positive = Field(default=256 << 20, description="loaded voices kept in memory")
    timeout_seconds: Seconds = Field(default=10.0, description="longest wait for the voice store")
    sweep_seconds: Seconds = Field(default=600.0, description="pause between two searches for expired voices")


class Settings(_Frozen):
    """Everything a server is told."""

    model: str = Field(
        default="demo", description="demo, the bundled voice; a directory; or a Hugging Face repository id"
    )
    revision: str | None = Field(default=None, description="branch, tag or commit of the repository")
    cache_dir: Path | None = Field(default=None, description="download cache; default: Hugging Face's own")
    listen: str = Field(default="127.0.0.1:50051", description="address to serve on; port 0 takes a free one")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="least severe log lines shown"
    )
    devices: tuple[Annotated[str, AfterValidator(_device)], ...] = Field(
        default=("auto",),
        description="one engine for each: 0,1 for two GPUs, cpu:2 for two on the CPU; auto is one on engine.device",
    )
    pool: Literal["processes", "ray"] = Field(
        default="processes", description="where engines run: in processes of this host, for each of devices, or on Ray"
    )
    fronts: Positive = Field(
        default=1, description="server processes that share the engines, for engines that outrun one Python process"
    )
    front_ports: Literal["shared", "consecutive"] = Field(
        default="shared", description="whether fronts listen on one port, or each on the next one after it"
    )
    decode_workers: Positive = Field(default=2, description="processes of a front that decode and resample uploads")
    drain_seconds: Annotated[float, Field(ge=0)] = Field(default=30.0, description="grace for open streams at shutdown")
    engine: EngineSettings = Field(default=EngineSettings(), description="the engine")
    supervision: SupervisionSettings = Field(
        default=SupervisionSettings(), description="when an engine counts as lost, and what follows"
    )
    ray: RaySettings = Field(default=RaySettings(), description="engines on a Ray cluster, for pool = ray")
    limits: LimitSettings = Field(default=LimitSettings(), description="limits of a caller")
    voices: VoiceSettings = Field(default=VoiceSettings(), description="the voice store")

    @property
    def fronts_share_port(self) -> bool:
        return self.fronts > 1 and self.front_ports == "shared"


def engines(settings: Settings) -> dict[str, EngineSettings]:
    """The engines that `devices` asks for, by name such as cuda:1 or cpu:0. Raises StartupError."""
    found: dict[str, EngineSettings] = {}
    for text in settings.devices:
        kind, _, number = text.rpartition(":")
        if text == "auto":
            named = {"auto": settings.engine.device}
        elif text == "cpu" or kind == "cpu":
            first = sum(engine.device == "cpu" for engine in found.values())
            named = {f"cpu:{first + index}": "cpu" for index in range(int(number) if kind else 1)}
        else:
            named = {f"cuda:{int(number)}": f"cuda:{int(number)}"}
        if twice := named.keys() & found.keys():
            raise StartupError(f"devices names {twice.pop()} twice; an engine needs a device of its own")
        found |= {name: settings.engine.model_copy(update={"device": device}) for name, device in named.items()}
    if not found:
        raise StartupError("devices is empty; name at least one, or auto")
    if "auto" in settings.devices and len(found) > 1:
        raise StartupError("devices names auto beside others, and it may be one of them; name all, or auto alone")
    return found
