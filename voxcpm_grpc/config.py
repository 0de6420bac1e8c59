"""Every setting, in one typed schema, read once: TOML file < environment (VOXCPM_...) < flags.

Nested settings are spelled `[engine] max_slots = 8` in TOML, `VOXCPM_ENGINE__MAX_SLOTS=8` in the environment and
`--engine.max-slots 8` as a flag. An unknown key is an error in all three; an empty value restores the default.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
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
        default=None, description="streams that speak at once; default 64 on CUDA, 8 on a CPU"
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

    model: str = Field(default="demo", description="demo, a directory, or a Hugging Face repository id")
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


def load(argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None) -> Settings:
    """The effective settings: the file that `--config` or VOXCPM_CONFIG names, under the environment, under `argv`.

    `argv` holds flags only; `env` is the process's environment if left out. Raises StartupError, one line for each
    fault, naming the source, the key, the value and the rule.
    """
    flags = dict(_from_flags(argv or ()))
    variables = dict(_from_environment(os.environ if env is None else env))
    file = flags.pop("config", None), variables.pop("config", None)
    path = next((given.value for given in file if given and given.value), None)
    return _validate({**(dict(_from_file(Path(path))) if path else {}), **variables, **flags})


def to_toml(settings: Settings) -> str:
    """`settings` as a TOML document that `load` reads back to equal settings; what has no value is a comment."""
    sections: dict[str, list[str]] = {}
    for key, field in FIELDS.items():
        section, _, name = key.rpartition(".")
        value = _value(settings, key)
        line = f'# {name} = ""' if value is None else f"{name} = {_toml(value)}"
        sections.setdefault(section, []).append(f"{line}  # {field.description}")
    return "\n".join("\n".join([f"[{name}]"] * bool(name) + lines) + "\n" for name, lines in sections.items())


def help_text() -> str:
    """What `serve --help` prints: every flag with its type, meaning and default, grouped by section."""
    rows = [
        ("", "--config FILE", "TOML file of settings"),
        ("", "--print-config", "print the effective settings as TOML and leave"),
    ]
    for key, field in FIELDS.items():
        default = "" if field.default is None else f" (default: {_plain(field.default)})"
        rows.append((key.rpartition(".")[0], f"{_flag(key)} {_kind(field)}", f"{field.description}{default}"))
    lines = ["A setting is a flag, an environment variable (VOXCPM_ENGINE__MAX_SLOTS for --engine.max-slots)"]
    lines += ["or a key of a TOML file; flags win over variables, variables over the file."]
    for section, flag, text in rows:
        heading = f"{SECTIONS.get(section, 'what to serve, and where')}:"
        if heading not in lines:
            lines += ["", heading]
        lines += textwrap.wrap(text, 118, initial_indent=f"  {flag:42} ", subsequent_indent=" " * 45)
    return "\n".join(lines) + "\n"


def describe() -> str:
    """Every setting as a Markdown table, for the documentation."""
    lines = ["| TOML key | Flag | Environment | Default | Meaning |", "|---|---|---|---|---|"]
    for key, field in FIELDS.items():
        default = "" if field.default is None else f"`{_plain(field.default)}`"
        names = " | ".join(f"`{name}`" for name in (key, _flag(key), _variable(key)))
        lines.append(f"| {names} | {default} | {field.description} |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class _Given:
    """A value as somebody wrote it, and where."""

    value: Any
    source: str


def _leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from _leaves(type(field.default), f"{prefix}{name}.")
        else:
            yield prefix + name, field


FIELDS: Mapping[str, FieldInfo] = dict(_leaves(Settings))
"""Every setting by its dotted TOML key, in the order of the schema."""
SECTIONS: Mapping[str, str] = {
    name: field.description or "" for name, field in Settings.model_fields.items() if name not in FIELDS
}

# Kubernetes puts variables for every service into every pod: for one named `voxcpm`, VOXCPM_PORT=tcp://10.0.0.1:50051
# and its kin. They are nobody's typing error.
_KUBERNETES = re.compile(
    r"VOXCPM_(\w+_)?(SERVICE_(HOST|PORT)(_\w+)?=|PORT(_\d+_[A-Z]+)?=\w+://|PORT_\d+_[A-Z]+_(PROTO|PORT|ADDR)=)"
)


def _flag(key: str) -> str:
    return "--" + key.replace("_", "-")


def _variable(key: str) -> str:
    return "VOXCPM_" + key.upper().replace(".", "__")


def _known(key: str, written: str, source: str, spell: Callable[[str], str]) -> str:
    if key in FIELDS:
        return key
    nearest = difflib.get_close_matches(key, FIELDS, 1)
    remedy = f"did you mean {spell(nearest[0])}?" if nearest else "--help lists every setting"
    raise StartupError(f"unknown setting {written} in {source}; {remedy}")


def _from_flags(argv: Sequence[str]) -> Iterator[tuple[str, _Given]]:
    words = list(reversed(argv))
    while words:
        word = words.pop()
        if not word.startswith("--"):
            raise StartupError(f"unexpected argument {word!r}; settings are flags such as --model demo")
        name, equals, value = word.partition("=")
        key = name[2:].replace("-", "_")
        if key != "config":
            _known(key, name, "the flags", _flag)
        if not equals:
            if words and not words[-1].startswith("--"):
                value = words.pop()
            elif key in FIELDS and FIELDS[key].annotation is bool:
                value = "true"
            else:
                raise StartupError(f"the flag {name} needs a value")
        yield key, _Given(value, f"the flag {name}")


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[str, _Given]]:
    for name, value in env.items():
        if not name.startswith("VOXCPM_") or name.startswith("VOXCPM_CLIENT_"):  # the client reads its own
            continue
        if _KUBERNETES.match(f"{name}={value}"):
            continue
        key = name.removeprefix("VOXCPM_").lower().replace("__", ".")
        if key != "config":
            _known(key, name, "the environment", _variable)
        yield key, _Given(value, f"the environment variable {name}")


def _from_file(path: Path) -> Iterator[tuple[str, _Given]]:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise StartupError(f"the settings file {path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # broken TOML or broken UTF-8
        raise StartupError(f"the settings file {path} is not valid TOML: {error}") from None
    source = f"the file {path}"
    for name, value in table.items():
        if name not in SECTIONS:
            yield _known(name, name, source, str), _Given(value, source)
        elif not isinstance(value, dict):
            raise StartupError(f"{name} is a section in {source}; write [{name}] and its settings below it")
        else:
            for leaf, inner in value.items():
                yield _known(f"{name}.{leaf}", f"{name}.{leaf}", source, str), _Given(inner, source)


def _validate(given: Mapping[str, _Given]) -> Settings:
    tree: dict[str, Any] = {}
    for key, one in given.items():
        section, _, name = key.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[name] = _typed(FIELDS[key], one.value)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        faults = []
        for fault in error.errors():
            where = ".".join(map(str, fault["loc"])) + "."
            key = next(key for key in given if where.startswith(f"{key}."))
            value = textwrap.shorten(repr(given[key].value), 80, placeholder="...")
            faults.append(f"{key} is {value} in {given[key].source}; {_rule(fault['type'], fault['msg'])}")
        raise StartupError("\n".join(faults)) from None


def _typed(field: FieldInfo, value: Any) -> Any:
    """`value` for the schema, which reads numbers from text by itself, but no lists, home directories or choices."""
    if not isinstance(value, str):
        return value
    if not value:
        return field.default
    if Path in get_args(field.annotation) and value.startswith("~/"):
        return Path.home() / value[2:]
    if get_origin(field.annotation) is tuple:
        return tuple(part.strip() for part in value.split(","))
    if get_origin(field.annotation) is Literal:
        return next((choice for choice in get_args(field.annotation) if str(choice) == value), value)
    return value


def _rule(kind: str, message: str) -> str:
    """A fault of the schema in the words of this program."""
    if kind == "path_type":
        return "it must be a path"
    if kind.endswith(("_parsing", "_type")):  # what could not be parsed was just quoted
        message = message.partition(",")[0]
    return re.sub("^(Input|Tuple) should", "it must", message)


def _kind(field: FieldInfo) -> str:
    """What a flag takes, in a word: `INT`, or the choices."""
    if get_origin(field.annotation) is Literal:
        return "|".join(map(str, get_args(field.annotation)))
    names = {bool: "true|false", Path: "PATH", str: "TEXT", float: "NUMBER"}
    kinds = (field.annotation, *get_args(field.annotation))
    kinds += tuple(inner for kind in kinds for inner in get_args(kind))  # of an annotated item
    kind = next((name for kind, name in names.items() if kind in kinds), "INT")
    return f"{kind},..." if get_origin(field.annotation) is tuple else kind


def _value(settings: Settings, key: str) -> Any:
    section, _, name = key.rpartition(".")
    return getattr(getattr(settings, section) if section else settings, name)


def _toml(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case tuple():
            return f"[{', '.join(map(_toml, value))}]"
        case str() | Path():  # JSON's escapes are TOML's, but for DEL
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case _:
            return str(value)


def _plain(value: Any) -> str:
    """A default as it is typed on a command line."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else _toml(value).strip('"')
