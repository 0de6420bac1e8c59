"""All settings of a server in one typed schema, and the engines that they describe. `sources` reads them."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.network.addresses import check_address_or_socket, unix_path
from voxcpm_grpc.settings.contracts import ContractSettings
from voxcpm_grpc.settings.engine import EngineSettings, RaySettings, SupervisionSettings
from voxcpm_grpc.settings.http import HttpSettings
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.settings.operation import AdminSettings, MetricsSettings, TracingSettings
from voxcpm_grpc.settings.security import AuthSettings, TlsSettings
from voxcpm_grpc.settings.text import TextSettings, WordSettings
from voxcpm_grpc.settings.types import Frozen, Interval, Positive, Seconds, checked
from voxcpm_grpc.settings.voices import VoiceSettings

DEVICES = re.compile(r"auto|cpu(:[1-9]\d*)?|(cuda:)?\d+")
OCTAL = re.compile(r"0?[0-7]{3}")
SEPARATOR = ";"  # several models are separated by it
NAMED = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]{0,63})=(?P<path>.*?)(@(?P<devices>[^@/]*))?", re.DOTALL)


def _device(text: str) -> str:
    if not DEVICES.fullmatch(text):
        raise PydanticCustomError(
            "device", "each must be auto, the number of a GPU, cpu, or cpu:N for N engines on the CPU"
        )
    return text


def _fronts(given: Any) -> Any:
    if given == "auto" or (not isinstance(given, bool) and re.fullmatch(r"0*[1-9]\d{0,8}", str(given))):
        return given if given == "auto" else int(given)
    raise PydanticCustomError("fronts", "it must be auto, or a whole number from 1 on")


def _mode(text: str) -> str:
    if not OCTAL.fullmatch(text):
        raise PydanticCustomError("mode", "it must be permissions in octal, such as '0660' for owner and group")
    return text


def _joined(given: Any) -> Any:
    """The text of a list of models, which files of settings may have."""
    if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
        return given
    if len(given) != 1 and not all(map(NAMED.fullmatch, given)):
        raise PydanticCustomError("model", "each model of a list needs a name, such as small=PATH")
    return SEPARATOR.join(given)


class Settings(Frozen):
    """All settings of a server."""

    model: Annotated[str, BeforeValidator(_joined)] = Field(
        default="demo",
        description="model to serve: demo (the bundled voice), a directory, or the id of a Hugging Face repository; "
        "several as NAME=MODEL[@DEVICES]: one flag for each, a list in the file, semicolons between them in the "
        "variable; DEVICES as for devices, with a part of the memory of a GPU such as 0:0.5; the first is the default",
    )
    lora: tuple[str, ...] = Field(
        default=(),
        description="LoRA adapters that requests may choose, each as NAME=DIRECTORY, one flag for each; with several "
        "models MODEL/NAME=DIRECTORY, without MODEL/ for the default one",
    )
    revision: str | None = Field(default=None, description="branch, tag or commit of the repository")
    cache_dir: Path | None = Field(default=None, description="folder for downloads; default: the cache of Hugging Face")
    listen: Annotated[str, AfterValidator(partial(checked, check_address_or_socket))] = Field(
        default="127.0.0.1:50051",
        description="address and port to listen on, such as 0.0.0.0:50051 for all interfaces or [::1]:50051; port 0 "
        "picks a free port; or a Unix socket, as unix:PATH",
    )
    listen_mode: Annotated[str, AfterValidator(_mode)] | None = Field(
        default=None,
        description="permissions of the file of a Unix socket, with listen = unix:PATH: 0660 lets its owner and its "
        "group connect, 0666 all users of the host; default: as the umask says, mostly the owner alone",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="lowest level of log lines that are printed"
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="format of log lines: text, or json with one object a line"
    )
    devices: tuple[Annotated[str, AfterValidator(_device)], ...] = Field(
        default=("auto",),
        description="one engine for each device: 0,1 for two GPUs, cpu:2 for two engines on the CPU; auto is every GPU "
        "that CUDA_VISIBLE_DEVICES leaves, or one engine on the CPU without one, and one engine on engine.device if "
        "that is set",
    )
    pool: Literal["processes", "ray"] = Field(
        default="processes",
        description="place of the engines: processes of this host, one for each of devices, or a Ray cluster",
    )
    fronts: Annotated[int | Literal["auto"], BeforeValidator(_fronts)] = Field(
        default="auto",
        description="server processes that share the engines: a number, or auto, which chooses it from the engines and "
        "the processor cores; the log says which and why",
    )
    front_ports: Literal["shared", "consecutive"] = Field(
        default="shared",
        description="shared: all fronts listen on one port; consecutive: each front listens on the next port, as does "
        "its HTTP",
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
    max_connection_age_seconds: Seconds | None = Field(
        default=None,
        description="age at which a connection takes no new calls, so that clients open another one, perhaps to "
        "another server; its open calls go on; varies by 10 %; default: no limit",
    )
    max_connection_age_grace_seconds: Seconds | None = Field(
        default=None,
        description="time from max_connection_age_seconds after which the open calls of the connection are cut off, "
        "which should be longer than any stream; default: no limit",
    )
    engine: EngineSettings = Field(default=EngineSettings(), description="engine")
    supervision: SupervisionSettings = Field(
        default=SupervisionSettings(), description="detection and restart of lost engines"
    )
    ray: RaySettings = Field(default=RaySettings(), description="engines on a Ray cluster, with pool = ray")
    limits: LimitSettings = Field(default=LimitSettings(), description="limits of requests, for each front")
    text: TextSettings = Field(default=TextSettings(), description="text of all streams")
    words: WordSettings = Field(default=WordSettings(), description="times of words")
    voices: VoiceSettings = Field(default=VoiceSettings(), description="voices")
    tls: TlsSettings = Field(default=TlsSettings(), description="encryption of connections")
    auth: AuthSettings = Field(default=AuthSettings(), description="authentication of callers")
    metrics: MetricsSettings = Field(default=MetricsSettings(), description="metrics for Prometheus")
    tracing: TracingSettings = Field(default=TracingSettings(), description="traces for OpenTelemetry")
    http: HttpSettings = Field(default=HttpSettings(), description="HTTP gateway beside the server")
    admin: AdminSettings = Field(default=AdminSettings(), description="statistics and LoRA adapters for operators")
    contracts: ContractSettings = Field(default=ContractSettings(), description="contracts of other servers")

    @model_validator(mode="after")
    def _with_socket(self) -> Settings:
        if self.listen_mode is not None and unix_path(self.listen) is None:
            raise PydanticCustomError("listen_mode", "listen_mode needs a Unix socket: listen = unix:PATH")
        return self

    @property
    def log(self) -> LogOptions:
        """The log of each process."""
        return LogOptions(self.log_level, self.log_format)

    @property
    def several_fronts(self) -> bool:
        return self.fronts != "auto" and self.fronts > 1

    @property
    def fronts_share_port(self) -> bool:
        return self.several_fronts and self.front_ports == "shared"


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
