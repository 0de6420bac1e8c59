"""The engines and the checkpoint of each model of a server, from its settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from voxcpm_grpc import checkpoint, progress
from voxcpm_grpc.checkpoint import is_repository
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import LocalEngines
from voxcpm_grpc.pool.engines.standby import Standby
from voxcpm_grpc.pool.ray.cluster import Membership
from voxcpm_grpc.pool.ray.engines import FindAndLoad, RayEngines
from voxcpm_grpc.settings.models import ModelSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.worker.standby import StandbyProcess
from voxcpm_server.download import download, find_model


def models_here(served: Iterable[ModelSettings]) -> list[Path | None]:
    """The directory of each model that this host has without a download, else None. Blocks. Raises StartupError."""
    return [None if is_repository(one.settings.model) else find_model(one.settings) for one in served]


async def found_models(served: Sequence[ModelSettings], directories: Sequence[Path | None]) -> list[Path]:
    """The directory of each model, downloaded if it is not among `directories`. Raises StartupError."""
    found: list[Path] = []
    for one, directory in zip(served, directories or [None] * len(served), strict=True):
        if directory is None:
            here = not is_repository(one.settings.model)
            directory = find_model(one.settings) if here else await download(one.settings)
        found.append(directory)
    return found


def local_engines(
    served: Sequence[ModelSettings], directories: Sequence[Path], first: StandbyProcess | None = None
) -> list[LocalEngines]:
    """The engines of each model in processes of this host, not yet started.

    They share a standby process, so they close together. The `first` engine starts in this one.
    """
    settings = served[0].settings
    standby = Standby.of_engines(directories, settings.supervision.standby, log=settings.log, first=first)
    here = sum(len(one.engines) for one in served)
    return [
        LocalEngines.of_checkpoint(
            directory,
            model_name(one),
            one.engines,
            one.settings.supervision,
            log=one.settings.log,
            engines_here=here,
            standby=standby,
            registers_loras=bool(one.settings.admin.lora_sources),
        )
        for one, directory in zip(served, directories, strict=True)
    ]


def process_pools(
    served: Sequence[ModelSettings], directories: Sequence[Path], first: StandbyProcess | None
) -> list[EnginePool]:
    """The pools of the only front of engines in processes of this host, not yet started; see `local_engines`."""
    return [EnginePool(engines) for engines in local_engines(served, directories, first)]


def ray_pools(served: Sequence[ModelSettings], cluster: Membership) -> list[EnginePool]:
    """Engines on the nodes of a cluster, not yet started. Each node finds the models by itself."""
    return [_ray_pool(one, cluster) for one in served]


def _ray_pool(one: ModelSettings, cluster: Membership) -> EnginePool:
    settings = one.settings
    path = Path(settings.model)
    model = str(path.absolute()) if settings.model != "demo" and path.is_dir() else settings.model
    find = partial(checkpoint.resolve, model, settings.revision, settings.cache_dir, progress=False)
    [engine] = one.engines.values() if len(one.engines) == 1 else [settings.engine]
    if engine.gpu_memory_part < 1 and settings.ray.gpus_per_engine is None:
        shared = settings.ray.model_copy(update={"gpus_per_engine": engine.gpu_memory_part})
        settings = settings.model_copy(update={"ray": shared})
    make = FindAndLoad(find, model_name(one), engine, bool(settings.admin.lora_sources))
    engines = RayEngines(make, settings, cluster, f"{one.name}@ray" if one.name else "ray")
    return EnginePool(engines, engines.autoscale)


def local_model(settings: Settings) -> Path | None:
    """The directory of the checkpoint if it is on this host without a download, else None."""
    if settings.model == "demo":
        return find_model(settings)
    return path if (path := Path(settings.model)).is_dir() else None


def model_name(one: ModelSettings) -> str:
    """The name of a model as callers see it. It is never a path."""
    if one.name:
        return one.name
    path = Path(one.settings.model)
    return path.resolve().name if path.is_dir() or path.is_absolute() else one.settings.model


async def joined(cluster: Membership) -> None:
    """Join the cluster of Ray, before the first use of gRPC. Raises StartupError."""
    progress.report("the Ray cluster is joined")
    await cluster.join()
