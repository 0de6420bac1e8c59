"""Engines on the nodes of a Ray cluster, whose number follows the load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.supervised import SupervisedEngines
from voxcpm_grpc.pool.ray.autoscale import autoscale
from voxcpm_grpc.pool.ray.cluster import Membership
from voxcpm_grpc.pool.ray.engine import RayEngine, Share
from voxcpm_grpc.pool.ray.scaler import Bounds
from voxcpm_grpc.settings.engine import EngineSettings, RaySettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.worker.engine_like import EngineLike
from voxcpm_grpc.worker.main import LoadEngine


@dataclass(frozen=True, slots=True)
class FindAndLoad:
    """Loads the engine of a checkpoint that each node finds itself with `find`. Raises StartupError."""

    find: Callable[[], Path]
    name: str
    settings: EngineSettings
    registers_loras: bool = False

    def __call__(self) -> EngineLike:
        return LoadEngine(self.find(), self.name, self.settings, registers_loras=self.registers_loras)()


class RayEngines(SupervisedEngines[RayEngine]):
    """Holds `ray.min_engines` to `ray.max_engines` engines, on any nodes of the cluster with room for them.

    The nodes call `make_engine`. Raises StartupError for settings that do not fit together.
    """

    def __init__(
        self,
        make_engine: Callable[[], EngineLike],
        settings: Settings,
        cluster: Membership | None = None,
        name: str = "ray",
    ) -> None:
        """`cluster`: a membership that models share, which these engines do not end; default: one of their own."""
        self._make_engine = make_engine
        self._name = name
        self._all_settings = settings
        self._bounds = _bounds(settings.ray)
        self._cluster = cluster or Membership(settings.ray.address)
        self._leaves = cluster is None
        self._share = Share(0.0, 0.0)  # `join` sets it
        self._engine_numbers = count()
        _check_devices(settings)
        factories = dict(self._next() for _ in range(self._bounds.min_engines))
        super().__init__(factories, settings.supervision, settings.engine.loras)

    async def join(self) -> None:
        """Join the cluster: the first part of `start`, which must precede the first use of gRPC; see `Membership`."""
        resources = await self._cluster.join()
        self._share = _share(self._all_settings, resources)
        if self._all_settings.ray.address is None:
            _check_room(self._bounds.min_engines, self._share, resources)

    async def start(self) -> None:
        try:
            await self.join()
        except BaseException:
            await self.close()
            raise
        await super().start()

    async def autoscale(self, pool: EnginePool) -> None:
        """Let the number of engines follow the load of the pool that uses them, until cancelled."""
        await autoscale(pool, self, self._next, self._bounds)

    async def close(self, *, force: bool = False) -> None:
        await super().close(force=force)
        if self._leaves:
            await self._cluster.leave()

    def _next(self) -> tuple[str, Callable[[], RayEngine]]:
        """The name of a new engine, and its factory."""
        name = f"{self._name}:{next(self._engine_numbers)}"
        return name, lambda: RayEngine(self._make_engine, self._share, name=name, log=self._all_settings.log)


def _bounds(settings: RaySettings) -> Bounds:
    max_engines = settings.max_engines or settings.min_engines
    if max_engines < settings.min_engines:
        raise StartupError(
            f"ray.max_engines is {max_engines}; it must be at least ray.min_engines, {settings.min_engines}"
        )
    return Bounds(
        min_engines=settings.min_engines,
        max_engines=max_engines,
        grow_seconds=settings.grow_seconds,
        shrink_seconds=settings.shrink_seconds,
    )


def _check_devices(settings: Settings) -> None:
    if settings.devices != ("auto",):
        raise StartupError(
            f"devices is {','.join(settings.devices)}, but on Ray the cluster chooses them; leave devices out and set "
            "ray.min_engines"
        )
    if ":" in settings.engine.device:
        raise StartupError(
            f"engine.device is {settings.engine.device}, but on Ray every engine sees its own GPU only; set it to cuda"
        )


def _share(settings: Settings, resources: Mapping[str, float]) -> Share:
    gpus = settings.ray.gpus_per_engine
    if gpus is None:
        on_gpu = {"cpu": False, "auto": bool(resources.get("GPU"))}.get(settings.engine.device, True)
        gpus = 1.0 if on_gpu else 0.0
    return Share(settings.ray.cpus_per_engine, gpus)


def _check_room(engines: int, share: Share, resources: Mapping[str, float]) -> None:
    for needed, kind, setting in ((share.cpus, "CPU", "cpus"), (share.gpus, "GPU", "gpus")):
        if engines * needed > resources.get(kind, 0.0):
            raise StartupError(
                f"{engines} engines with {needed:g} {kind}s each do not fit this host, which has "
                f"{resources.get(kind, 0.0):g}; lower ray.min_engines or ray.{setting}_per_engine"
            )
