"""Settings of engines, of their supervision and of a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from voxcpm_grpc.settings.types import Frozen, Positive, Seconds, Share

DEFAULT_LORAS = 16  # adapters on the device, if there can be any

OF_FAMILIES = frozenset(
    (
        *("codec_dtype", "quantization", "attention", "timesteps", "persistent", "compile", "recorded_noise"),
        *("merge_lora", "loras", "max_loras", "max_lora_rank", "lora_targets", "reference_silence"),
    )
)
"""The settings of engines that not every model family has."""


class EngineSettings(Frozen):
    """Settings of an engine, which runs a model on a device."""

    device: str = Field(
        default="auto", description="device of the engine: auto, cpu, cuda or cuda:N; auto uses a GPU if there is one"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="data type of the computation; auto is bfloat16 on a GPU that has it, else float32"
    )
    codec_dtype: Literal["auto", "float32", "float16"] = Field(
        default="auto",
        description="data type in which the codec decodes audio; auto is float16 if dtype is bfloat16, otherwise "
        "float32",
    )
    quantization: Literal["none", "fp8"] = Field(
        default="none",
        description="fp8 rounds the weights of the language models to 8-bit floats at the start, which saves memory, "
        "makes prompts and most steps longer, and changes the speech a little; needs a Hopper GPU",
    )
    attention: Literal["auto", "reference", "triton", "flash"] = Field(
        default="auto", description="implementation of attention; auto chooses one that the device supports"
    )
    timesteps: tuple[Positive, ...] = Field(
        default=(4, 6, 10), min_length=1, description="numbers of flow-matching steps that requests may ask for"
    )
    max_slots: Positive | None = Field(
        default=None,
        description="streams that an engine speaks at the same time; default: 128 on a GPU of 40 GB or more, 64 on a "
        "smaller GPU, 8 on a CPU",
    )
    max_queue: Annotated[int, Field(ge=0)] = Field(
        default=256, description="requests that may wait for their first slot of an engine"
    )
    max_model_len: Positive | None = Field(
        default=None,
        description="positions that text, prompt, reference and speech of a request may take together; default: the "
        "model's limit",
    )
    page_size: Literal[16, 32] = Field(default=16, description="positions in a page of the KV cache")
    kv_positions: Positive | None = Field(
        default=None, description="positions in the whole KV cache; default: as many as the device's memory allows"
    )
    gpu_memory_utilization: float = Field(
        default=0.85, gt=0, le=1, description="largest share of the GPU's memory that the engine may use"
    )
    gpu_memory_part: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="part of what gpu_memory_utilization allows that is for this engine, if other programs or models "
        "share the GPU; below 1, their memory counts only where it leaves less; model sets it with @DEVICES",
    )
    prefill_tokens: Positive | None = Field(
        default=None,
        description="prompt positions computed between two steps, at most; default: 2048 on CUDA, up to 4096 if many "
        "requests wait, and 256 on a CPU",
    )
    prefix_caching: bool = Field(default=True, description="share KV-cache pages between requests that begin alike")
    graphs: bool = Field(
        default=True, description="replay steps as CUDA graphs; false runs the same code without graphs"
    )
    persistent: bool = Field(
        default=True,
        description="run the diffusion and the patch encoder of a single stream, and each language model of up to 8 "
        "streams, as one kernel, if the model and the GPU (Hopper) support it; takes 0.8 GiB",
    )
    merge_lora: Path | None = Field(
        default=None,
        description="directory of a LoRA adapter that is merged into the weights at the start; all speech then uses it,"
        " at the speed of the model alone",
    )
    loras: tuple[str, ...] = Field(
        default=(),
        description="LoRA adapters of every model, each as NAME=DIRECTORY; lora sets it for one model",
    )
    max_loras: Annotated[int, Field(ge=0, le=62)] | None = Field(
        default=None,
        description="LoRA adapters on the device at the same time; more can be registered and take turns; default: 16 "
        "with lora, or with admin.lora_sources if the model takes adapters, otherwise 0, which takes no memory",
    )
    max_lora_rank: Annotated[int, Field(ge=1, le=128)] = Field(
        default=64, description="largest rank of a LoRA adapter that requests may choose; memory grows with it"
    )
    lora_targets: tuple[Literal["attention", "mlp", "projections"], ...] = Field(
        default=("attention", "projections"),
        min_length=1,
        description="kinds of maps that such adapters may change: attention (q, k, v and o of the language models and "
        "the diffusion), mlp (gate, up and down), projections (between the networks)",
    )
    reference_silence: float = Field(
        default=0.5,
        ge=0,
        le=5,
        description="seconds of silence that follow a recording with a transcript before Qwen3-TTS encodes it, which "
        "keeps its last sound from being spoken again; 0 is the official behaviour",
    )
    threads: Positive | None = Field(
        default=None,
        description="CPU threads of an engine; default: 1 for a small model, otherwise an equal share of PyTorch's own"
        " default",
    )
    compile: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="on a CPU with a C++ compiler: compile the diffusion and the decoder in the background, half a "
        "minute after a start, for the starts after it; auto does that for small models, such as the demo voice",
    )
    recorded_noise: Path | None = Field(
        default=None,
        description="a .npy file of float32 [steps, D, P] that replaces the noise generator, for parity tests",
    )


class SupervisionSettings(Frozen):
    """Detection and restart of lost engines."""

    silence_seconds: Annotated[Seconds, Field(ge=0.75)] = Field(  # three heartbeats pass, one of which may be late
        default=1.5, description="longest time without a heartbeat of an engine process, which sends one every 0.25 s"
    )
    step_seconds: Seconds | None = Field(
        default=None,
        description="longest duration of a step; default: 5 times the longest step of the warm-up (20 times on a CPU),"
        " at least 1.5",
    )
    restart_seconds: Seconds = Field(default=30.0, description="longest pause between two attempts to start an engine")
    restart_limit: Positive = Field(
        default=10,
        description="failed starts in a row after which an engine is given up; the server ends when all are given up",
    )
    standby: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="keep one more process, which has imported PyTorch, has no memory of a GPU, and becomes the engine "
        "that replaces a lost one; auto: if an engine has a GPU",
    )


class RaySettings(Frozen):
    """Engines on the nodes of a Ray cluster."""

    address: str | None = Field(
        default=None,
        description="the Ray cluster of this host: auto, or HOST:PORT of its head; default: start a new cluster here",
    )
    min_engines: Positive = Field(default=1, description="smallest number of engines; the server starts with that many")
    max_engines: Positive | None = Field(
        default=None, description="largest number of engines; default: the same as min_engines"
    )
    grow_seconds: Seconds = Field(default=5.0, description="wait for a slot after which another engine is started")
    shrink_seconds: Seconds = Field(
        default=300.0, description="time after which an engine that is not needed is stopped"
    )
    cpus_per_engine: Share = Field(default=1.0, description="CPUs that Ray reserves for each engine")
    gpus_per_engine: Share | None = Field(
        default=None,
        description="GPUs that Ray reserves for each engine; default: 1, or 0 if engine.device is cpu or no node has a"
        " GPU",
    )
