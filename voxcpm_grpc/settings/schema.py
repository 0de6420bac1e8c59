"""All settings in one typed schema, and the engines that they describe. `sources` reads them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from voxcpm_grpc.errors import StartupError

Positive = Annotated[int, Field(gt=0)]
MAX_SECONDS = 100 * 365 * 86400.0
"""100 years, the largest duration of a setting. A time that far from now is still a valid date in every format."""
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
Interval = Annotated[float, Field(ge=0.01, le=86400.0)]
Share = Annotated[float, Field(ge=0, le=1024)]
Quota = Annotated[int, Field(ge=0)]


DEVICES = re.compile(r"auto|cpu(:[1-9]\d*)?|(cuda:)?\d+")


def _device(text: str) -> str:
    if not DEVICES.fullmatch(text):
        raise PydanticCustomError(
            "device", "each must be auto, the number of a GPU, cpu, or cpu:N for N engines on the CPU"
        )
    return text


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class EngineSettings(_Frozen):
    """Settings of an engine, which runs a model on a device."""

    device: str = Field(
        default="auto", description="device of the engine: auto, cpu, cuda or cuda:N; auto uses a GPU if there is one"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="data type of the computation; auto is bfloat16 on CUDA and float32 on a CPU"
    )
    codec_dtype: Literal["auto", "float32", "float16"] = Field(
        default="auto",
        description="data type in which the codec decodes audio; auto is float16 if dtype is bfloat16, otherwise "
        "float32",
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
        description="run the diffusion of a single stream as one kernel, if the model and the GPU (Hopper) support it;"
        " takes 0.4 GiB",
    )
    threads: Positive | None = Field(
        default=None,
        description="CPU threads of an engine; default: 1 for a small model, otherwise an equal share of PyTorch's own"
        " default",
    )
    recorded_noise: Path | None = Field(
        default=None,
        description="a .npy file of float32 [steps, D, P] that replaces the noise generator, for parity tests",
    )


class SupervisionSettings(_Frozen):
    """Detection and restart of lost engines."""

    silence_seconds: Annotated[Seconds, Field(ge=0.75)] = Field(  # three heartbeats, one of which may be late
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


class RaySettings(_Frozen):
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


MIN_SHARE = 16  # a smaller number is not worth sharing out


def _share(total: int, part: float) -> int:
    return max(round(total * part), MIN_SHARE)


def _quota(setting: int | None, default: int) -> float:
    """The value of a setting for which 0 means no limit."""
    return default if setting is None else setting or math.inf


class LimitSettings(_Frozen):
    """Limits of requests. Each front applies them on its own."""

    max_message_bytes: Positive = Field(default=8 << 20, description="largest request message")
    max_inline_audio_bytes: Positive = Field(
        default=6 << 20, description="largest recording that is sent inside a Generate stream"
    )
    max_upload_bytes: Positive = Field(default=32 << 20, description="largest uploaded recording")
    max_upload_bytes_total: Positive = Field(
        default=512 << 20, description="recordings of all callers in memory, which stay there until they are encoded"
    )
    max_upload_bytes_per_caller: Quota | None = Field(
        default=None,
        description="recordings of one caller, an IP address, in memory; 0: no such limit, as behind a proxy; default: "
        "half of max_upload_bytes_total, but room for two recordings",
    )
    max_prompt_seconds: Seconds = Field(default=60.0, description="longest prompt recording")
    max_reference_seconds: Seconds = Field(default=60.0, description="longest reference recording")
    max_text_chars: Positive = Field(default=20_000, description="text of one stream that may wait to be spoken")
    max_segment_chars: Positive = Field(default=400, description="longest segment; longer sentences are split")
    max_transcript_chars: Positive = Field(default=2_000, description="longest transcript of a prompt")
    max_style_chars: Positive = Field(default=500, description="longest style, the description of a voice")
    max_lead_seconds: Seconds = Field(
        default=30.0, description="audio that the server may hold for a client that does not read"
    )
    max_queue_seconds: Seconds = Field(default=30.0, description="longest wait for a slot")
    max_carry_seconds: Seconds = Field(
        default=20.0, description="earlier speech of a stream that conditions the next segment"
    )
    max_streams: Positive = Field(default=256, description="streams that are open at the same time")
    max_streams_per_connection: Quota | None = Field(
        default=None,
        description="streams that one connection may open at the same time; 0: no such limit; default: half of "
        f"max_streams, at least {MIN_SHARE}",
    )
    max_streams_per_caller: Quota | None = Field(
        default=None,
        description="streams that one caller, an IP address, may open at the same time; 0: no such limit, as behind a "
        f"proxy; default: three quarters of max_streams, at least {MIN_SHARE}",
    )
    stream_idle_seconds: Seconds = Field(
        default=300.0, description="time without a message after which a stream with nothing left to speak ends"
    )
    write_seconds: Seconds = Field(
        default=300.0,
        description="time for which a client may leave a reply unread, after which its stream or call ends",
    )
    upload_idle_seconds: Seconds = Field(
        default=30.0, description="time without a message after which an upload is refused"
    )
    upload_seconds: Seconds = Field(
        default=300.0,
        description="longest time from the start of an upload to its commit; 300 s are enough for max_upload_bytes at "
        "1 Mbit/s",
    )

    @property
    def streams_per_connection(self) -> float:
        """The largest number of streams of a connection; infinity if there is no limit."""
        return _quota(self.max_streams_per_connection, _share(self.max_streams, 1 / 2))

    @property
    def streams_per_caller(self) -> float:
        """The largest number of streams of a caller; infinity if there is no limit."""
        return _quota(self.max_streams_per_caller, _share(self.max_streams, 3 / 4))

    @property
    def upload_bytes_per_caller(self) -> float:
        """The largest number of bytes of a caller's recordings in memory; infinity if there is no limit."""
        return _quota(
            self.max_upload_bytes_per_caller, max(self.max_upload_bytes_total // 2, 2 * self.max_upload_bytes)
        )


class VoiceSettings(_Frozen):
    """The voice store and the default voice."""

    url: str | None = Field(
        default=None,
        description="voice store, which several servers can share: a folder, or a URL such as s3://bucket/voices; "
        "default: the user's data directory",
    )
    default: str = Field(
        default="auto",
        description="default voice, for streams without a voice and a style: auto (the preset that the model marks as "
        "default, if there is one), none (the model chooses) or the name of a preset",
    )
    ttl_seconds: Seconds = Field(
        default=30 * 86400.0, description="time after its last use at which a voice is deleted"
    )
    max_voices: Positive = Field(
        default=10_000,
        description="largest number of stored voices; voices that other servers add to a shared store are counted at "
        "the next sweep",
    )
    max_voices_per_caller: Quota | None = Field(
        default=None,
        description="largest number of stored voices of one caller, an IP address; 0: no such limit, as behind a "
        "proxy; default: three quarters of max_voices",
    )
    cache_bytes: Positive = Field(default=256 << 20, description="loaded voices kept in memory")
    timeout_seconds: Seconds = Field(default=10.0, description="longest wait for the voice store")
    sweep_seconds: Seconds = Field(default=600.0, description="pause between two sweeps, which remove expired voices")

    @property
    def voices_per_caller(self) -> float:
        """The largest number of stored voices of a caller; infinity if there is no limit."""
        return _quota(self.max_voices_per_caller, max(1, self.max_voices * 3 // 4))


class TlsSettings(_Frozen):
    """Encryption of connections."""

    cert: Path | None = Field(
        default=None,
        description="PEM file of the server's certificate and its chain; the server uses TLS if it is set, and reads "
        "the files again when they change",
    )
    key: Path | None = Field(default=None, description="PEM file of the private key of tls.cert")
    client_ca: Path | None = Field(
        default=None,
        description="PEM file of the certificate authorities of clients; if it is set, every client needs a "
        "certificate of theirs",
    )

    @model_validator(mode="after")
    def _complete(self) -> TlsSettings:
        if (self.cert is None) != (self.key is None):
            raise PydanticCustomError("tls", "tls.cert and tls.key need each other: set both or none of them")
        if self.client_ca is not None and self.cert is None:
            raise PydanticCustomError("tls", "tls.client_ca needs tls.cert and tls.key")
        return self


class AuthSettings(_Frozen):
    """Authentication of callers."""

    keys: Path | None = Field(
        default=None,
        description="file of API keys, which `voxcpm-grpc keys new` writes; read again when it changes",
    )
    jwks: str | None = Field(
        default=None,
        description="public keys of the identity provider that signs JSON web tokens, a JWKS document: a URL, or a "
        "file",
    )
    issuer: str | None = Field(default=None, description="issuer (iss) that a token must have; default: any")
    audience: str | None = Field(default=None, description="audience (aud) that a token must have; default: any")
    principal_claim: str = Field(default="sub", min_length=1, description="claim of a token that names its bearer")
    admin_scope: str | None = Field(
        default=None,
        description="scope or role of tokens whose bearers may call VoxCPMAdminService and manage all voices; default: "
        "no token may",
    )

    @model_validator(mode="after")
    def _complete(self) -> AuthSettings:
        if self.jwks is None and (self.issuer, self.audience, self.admin_scope) != (None, None, None):
            raise PydanticCustomError("auth", "auth.issuer, auth.audience and auth.admin_scope need auth.jwks")
        return self


class MetricsSettings(_Frozen):
    """Metrics for Prometheus."""

    listen: str | None = Field(
        default=None,
        description="address and port of the page /metrics, such as 0.0.0.0:9464; of several fronts each listens on "
        "the next port; default: no metrics",
    )

    @field_validator("listen")
    @classmethod
    def _check(cls, listen: str | None) -> str | None:
        if listen is not None and not (listen.rpartition(":")[0] and listen.rpartition(":")[2].isdecimal()):
            raise PydanticCustomError("listen", "it must be an address and a port, such as 127.0.0.1:9464")
        return listen

    def of_front(self, number: int) -> MetricsSettings:
        """The settings of a front, counted from 0, of several."""
        if self.listen is None:
            return self
        host, _, port = self.listen.rpartition(":")
        return MetricsSettings(listen=f"{host}:{int(port) and int(port) + number}")


class Settings(_Frozen):
    """All settings of a server."""

    model: str = Field(
        default="demo",
        description="model to serve: demo (the bundled voice), a directory, or the id of a Hugging Face repository",
    )
    revision: str | None = Field(default=None, description="branch, tag or commit of the repository")
    cache_dir: Path | None = Field(default=None, description="folder for downloads; default: the cache of Hugging Face")
    listen: str = Field(
        default="127.0.0.1:50051", description="address and port to listen on; port 0 picks a free port"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="lowest level of log lines that are printed"
    )
    devices: tuple[Annotated[str, AfterValidator(_device)], ...] = Field(
        default=("auto",),
        description="one engine for each device: 0,1 for two GPUs, cpu:2 for two engines on the CPU; auto is one "
        "engine on engine.device",
    )
    pool: Literal["processes", "ray"] = Field(
        default="processes",
        description="place of the engines: processes of this host, one for each of devices, or a Ray cluster",
    )
    fronts: Positive = Field(
        default=1,
        description="server processes that share the engines; more than 1 if a single Python process limits the "
        "throughput",
    )
    front_ports: Literal["shared", "consecutive"] = Field(
        default="shared",
        description="shared: all fronts listen on one port; consecutive: each front listens on the next port",
    )
    decode_workers: Positive = Field(default=2, description="processes of each front that decode and resample uploads")
    drain_seconds: Annotated[float, Field(ge=0)] = Field(
        default=30.0, description="time from SIGTERM after which calls that are still open are ended"
    )
    drain_delay_seconds: Annotated[float, Field(ge=0)] = Field(
        default=5.0,
        description="first part of drain_seconds, in which health is NOT_SERVING and new calls are still served, so "
        "that load balancers can react; Ctrl-C skips it",
    )
    keepalive_seconds: Interval = Field(
        default=15.0, description="time without a message of a client after which the server sends it a ping"
    )
    keepalive_timeout_seconds: Interval = Field(
        default=10.0, description="time without an answer to the ping after which the connection and its calls end"
    )
    engine: EngineSettings = Field(default=EngineSettings(), description="engine")
    supervision: SupervisionSettings = Field(
        default=SupervisionSettings(), description="detection and restart of lost engines"
    )
    ray: RaySettings = Field(default=RaySettings(), description="engines on a Ray cluster, with pool = ray")
    limits: LimitSettings = Field(default=LimitSettings(), description="limits of requests, for each front")
    voices: VoiceSettings = Field(default=VoiceSettings(), description="voices")
    tls: TlsSettings = Field(default=TlsSettings(), description="encryption of connections")
    auth: AuthSettings = Field(default=AuthSettings(), description="authentication of callers")
    metrics: MetricsSettings = Field(default=MetricsSettings(), description="metrics for Prometheus")

    @property
    def fronts_share_port(self) -> bool:
        return self.fronts > 1 and self.front_ports == "shared"


def engines(settings: Settings) -> dict[str, EngineSettings]:
    """The settings of each engine in `devices`, by names such as cuda:1 and cpu:0. Raises StartupError."""
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
            raise StartupError(f"devices names {twice.pop()} twice; each engine needs its own device")
        found |= {name: settings.engine.model_copy(update={"device": device}) for name, device in named.items()}
    if not found:
        raise StartupError("devices is empty; list at least one device, or auto")
    if "auto" in settings.devices and len(found) > 1:
        raise StartupError("devices has auto and other devices, which may be the same; list all devices, or auto alone")
    return found
