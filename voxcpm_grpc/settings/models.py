"""The models of a server: the setting `model`, which names one model or several, and the engines of each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.settings.schema import DEVICES, NAMED, SEPARATOR, Settings, engines

NEXT = re.compile(rf"{SEPARATOR}(?=[A-Za-z0-9][\w.-]{{0,63}}=)")
PART = re.compile(rf"(?P<device>{DEVICES.pattern})(:(?P<part>\d*\.\d+|1))?")
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
LORA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
LORA = re.compile(rf"((?P<model>[\w.-]+)/)?(?P<name>{LORA_NAME.pattern})=(?P<path>.+)", re.DOTALL)
ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The settings of one model of a server.

    name: the name for requests; empty for a model without one, which is named by its directory or repository
    settings: those of a server with this model alone
    engines: the settings of each engine, by the name of its replica
    """

    name: str
    settings: Settings
    engines: Mapping[str, EngineSettings]


def models(settings: Settings) -> tuple[ModelSettings, ...]:
    """The models of a server, the default first. Raises StartupError.

    `model` is the path of one model, or `NAME=PATH[@DEVICES]` for each of several, with semicolons between them.
    DEVICES is a list as in the setting `devices`; a GPU may have a part of its memory for this model, such as `0:0.5`.
    """
    written = NEXT.split(settings.model)
    found = [NAMED.fullmatch(text) for text in written]
    if len(found) == 1 and found[0] is None:
        view = _with_loras(settings, [""])[""]
        return (ModelSettings("", view, engines(view)),)
    if None in found:
        raise StartupError(unnamed(written[found.index(None)]))
    given = [match for match in found if match is not None]
    names = [match["name"] for match in given]
    if twice := {name for name in names if names.count(name) > 1}:
        raise StartupError(f"model names {', '.join(sorted(twice))} twice; give each model a name of its own")
    if settings.revision is not None and sum(bool(REPOSITORY.fullmatch(match["path"])) for match in given) > 1:
        raise StartupError(
            f"revision is {settings.revision} and several models are repositories, which have commits of their own; "
            "fetch them with `voxcpm-grpc download --revision`, and give their directories to --model"
        )
    views = _with_loras(settings, names)
    return _with_parts([_read(match, views[match["name"]]) for match in given], alone=len(given) == 1)


def on_all_gpus(settings: Settings, count: int) -> Settings:
    """The settings with the numbers of `count` GPUs for each auto of devices and of models.

    They are as before with fewer than two GPUs, on Ray, and if engine.device names one device.
    """
    if count < 2 or settings.pool == "ray" or settings.engine.device != "auto":
        return settings
    numbers = tuple(map(str, range(count)))
    written = (_on_gpus(text, numbers) for text in NEXT.split(settings.model))
    devices = numbers if settings.devices == ("auto",) else settings.devices
    return settings.model_copy(update={"model": SEPARATOR.join(written), "devices": devices})


def _on_gpus(model: str, numbers: Sequence[str]) -> str:
    """A model as `model` names it, with these GPUs for auto."""
    match = NAMED.fullmatch(model)
    if match is None or match["devices"] is None:
        return model
    devices: list[str] = []
    for text in map(str.strip, match["devices"].split(",")):
        device, colon, part = text.partition(":")
        devices += [f"{number}{colon}{part}" for number in numbers] if device == "auto" else [text]
    return f"{match['name']}={match['path']}@{','.join(devices)}"


def _with_loras(settings: Settings, names: Sequence[str]) -> dict[str, Settings]:
    """The settings of each model, the default first, with its LoRA adapters. Raises StartupError."""
    own: dict[str, dict[str, str]] = {name: {} for name in names}
    for text in settings.lora:
        match = LORA.fullmatch(text)
        if match is None:
            raise StartupError(f"lora has {text!r}; write NAME=DIRECTORY, or MODEL/NAME=DIRECTORY with several models")
        model = names[0] if match["model"] is None else match["model"]
        if model not in own:
            listed = ", ".join(filter(None, names)) or "one without a name"
            raise StartupError(f"lora has {text!r} and there is no model {model}; the models are {listed}")
        if match["name"] in own[model]:
            raise StartupError(f"lora names {match['name']} twice; give each adapter a name of its own")
        own[model][match["name"]] = match["path"]
    engine = settings.engine
    return {
        name: settings.model_copy(
            update={
                "engine": engine.model_copy(
                    update={"loras": (*engine.loras, *(f"{lora}={path}" for lora, path in loras.items()))}
                )
            }
        )
        for name, loras in own.items()
    }


def unnamed(model: str) -> str:
    """The error for a model without a name beside others."""
    return f"model is {model!r} beside other models; with several, each needs a name: --model NAME=PATH[@DEVICES]"


@dataclass(frozen=True, slots=True)
class _Named:
    """A named model. `parts` has the stated part of the memory of each of its engines; None: none is stated."""

    name: str
    settings: Settings
    parts: Mapping[str, float | None]


def _read(match: re.Match[str], settings: Settings) -> _Named:
    name, path = match["name"], match["path"]
    if not path:
        raise StartupError(f"model {name} has no path; write --model {name}=PATH[@DEVICES]")
    if match["devices"] is None:
        view = settings.model_copy(update={"model": path})
        return _Named(name, view, dict.fromkeys(engines(view)))
    devices: list[str] = []
    parts: list[float | None] = []  # each engine has its own
    for text in match["devices"].split(","):
        item = PART.fullmatch(text.strip())
        part = None if item is None or item["part"] is None else float(item["part"])
        if item is None or (part is not None and not 0 < part <= 1):
            raise StartupError(
                f"model {name} has {text!r} after @; each must be auto, the number of a GPU, cpu, or cpu:N, and a GPU "
                "may have a part of its memory, more than 0 and at most 1: 0:0.5"
            )
        device = item["device"]
        if part is not None and device.startswith("cpu"):
            raise StartupError(f"model {name} has {text!r} after @; only a GPU has parts, leave out :{part:g}")
        devices.append(device)
        parts += [part] * int(device.removeprefix("cpu:") if device.startswith("cpu:") else 1)
    view = settings.model_copy(update={"model": path, "devices": tuple(devices)})
    return _Named(name, view, dict(zip(engines(view), parts, strict=True)))


def _gpu(device: str) -> int | None:
    """The number of the GPU that a device means or, for auto, may mean; None for a CPU."""
    if device == "cpu" or device.startswith("cpu:"):
        return None
    number = device.rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


def _with_parts(named: list[_Named], *, alone: bool) -> tuple[ModelSettings, ...]:
    """Give each engine its part of the memory of its GPU: the stated one, or an equal share of what is left.

    Raises StartupError if the parts of a GPU are more than the whole.
    """
    made = [(one, name, engine) for one in named for name, engine in engines(one.settings).items()]
    on_gpu: dict[int, list[tuple[str, float | None]]] = {}
    on_ray = any(one.settings.pool == "ray" for one in named)  # Ray chooses the GPU of each engine
    for one, name, engine in () if on_ray else made:
        if (gpu := _gpu(engine.device)) is not None:
            on_gpu.setdefault(gpu, []).append((one.name, one.parts[name]))
    rest: dict[int, float] = {}
    for gpu, users in on_gpu.items():
        stated = {model: part for model, part in users if part is not None}
        total, unstated = sum(stated.values()), [model for model, part in users if part is None]
        listed = " + ".join(f"{part:g} ({model})" for model, part in stated.items())
        if total > 1 + ROUNDING:
            raise StartupError(
                f"the parts of GPU {gpu} are {listed} = {total:g} and the whole is 1; lower one, or move a model to "
                "another GPU"
            )
        if unstated and total > 1 - ROUNDING:
            raise StartupError(
                f"the parts of GPU {gpu} are {listed} = {total:g}, and nothing is left for {', '.join(unstated)}; "
                "lower one, or move a model to another GPU"
            )
        rest[gpu] = (1 - total) / max(1, len(unstated))
    found: list[ModelSettings] = []
    for one in named:
        own: dict[str, EngineSettings] = {}
        for name, engine in engines(one.settings).items():
            gpu, part = _gpu(engine.device), one.parts[name]
            if gpu is not None:
                part = rest.get(gpu, 1.0) if part is None else part
                engine = engine.model_copy(update={"gpu_memory_part": engine.gpu_memory_part * part})
            own[name if alone else f"{one.name}@{name}"] = engine
        found.append(ModelSettings(one.name, one.settings, own))
    return tuple(found)
