"""The number of fronts of a server, if the settings leave it to the server."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from voxcpm_grpc.network.addresses import is_unix
from voxcpm_grpc.pool.engines.host import socket_fault
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.settings.models import ModelSettings
from voxcpm_grpc.settings.schema import Settings

# One front is full at about 100 streams a second, and from half of that on its streams begin later; an engine on a GPU
# begins as many. Clients keep their connections, so some fronts have more streams than others. See docs/engines.md.
LEAST, MOST = 2, 4  # each GPU has so many fronts
SHARE = 0.5  # more fronts than the least may take this share of the cores beside those of the engines


@dataclass(frozen=True, slots=True)
class FrontCount:
    """A number of fronts, and the reason for it."""

    count: int
    reason: str


def front_count(settings: Settings, served: Sequence[ModelSettings], *, gpus: int, cores: float) -> FrontCount:
    """The number of fronts for these models: that of the settings, or for auto the best one.

    gpus: the GPUs that engines on `auto` may use
    cores: the processor cores of the server
    """
    if settings.fronts != "auto":
        return FrontCount(settings.fronts, "as fronts says")
    if fault := _alone(settings):
        return FrontCount(1, fault)
    engines = [engine for one in served for engine in one.engines.values()]
    used = {_gpu(engine) for engine in engines if _on_gpu(engine, gpus)}
    if not used:
        return FrontCount(1, f"which is enough for {_number(len(engines), 'engine')} on the CPU")
    least, most = LEAST * len(used), MOST * len(used)
    free = cores - len(engines)
    beside = f"{_number(cores, 'core')} and {_number(len(engines), 'engine')}"
    if free < least:
        return FrontCount(
            max(1, int(free)), f"as many as {beside} leave room for, of {least} for {_number(len(used), 'GPU')}"
        )
    if least < (half := int(SHARE * free)) < most:
        leave = "leave" if len(engines) > 1 else "leaves"
        return FrontCount(half, f"half of {_number(free, 'core')} that {_number(len(engines), 'engine')} {leave}")
    each = LEAST if half <= least else MOST
    return FrontCount(each * len(used), f"{each} for each of {_number(len(used), 'GPU')}; {beside}")


def _alone(settings: Settings) -> str:
    """The reason for which several fronts cannot serve; empty if they can."""
    if settings.pool != "processes":
        return "because fronts share the engines of their host, and those of a Ray cluster are elsewhere"
    if is_unix(settings.listen):
        return "because a Unix socket belongs to one process"
    if settings.front_ports == "consecutive":
        return "because with consecutive ports their number must be known"
    if (settings.voices.url or "").startswith("memory:"):
        return "because voices in memory (voices.url) belong to one process"
    if not hasattr(socket, "SO_REUSEPORT"):
        return "because this system does not let processes share a port"
    if fault := socket_fault():
        return f"because {fault}"
    return ""


def _on_gpu(engine: EngineSettings, gpus: int) -> bool:
    return engine.device.startswith("cuda") or (engine.device == "auto" and gpus > 0)


def _gpu(engine: EngineSettings) -> str:
    """The GPU of an engine. Several models may share one."""
    return "cuda:0" if engine.device in ("auto", "cuda") else engine.device


def _number(count: float, noun: str) -> str:
    return f"{count:g} {noun}" + ("s" if count != 1 else "")
