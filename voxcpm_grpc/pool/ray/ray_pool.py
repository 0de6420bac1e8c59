"""A pool whose engines run on the nodes of a Ray cluster, and whose size follows the load."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.pool.background import cancel_and_wait, keep_running
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.handle import Handle, HandleFactory
from voxcpm_grpc.pool.ray.autoscale import autoscale
from voxcpm_grpc.pool.ray.cluster import Membership
from voxcpm_grpc.pool.ray.handle import RayHandle, Share
from voxcpm_grpc.pool.ray.scaler import Bounds
from voxcpm_grpc.settings.engine import EngineSettings, RaySettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.worker.dispatcher import EngineLike
from voxcpm_grpc.worker.main import LoadEngine


@dataclass(frozen=True, slots=True)
class FindAndLoad:
    """Loads the engine of a checkpoint that each node finds itself with `find`. Raises StartupError."""

    find: Callable[[], Path]
    name: str
    settings: EngineSettings

    def __call__(self) -> EngineLike:
        return LoadEngine(self.find(), self.name, self.settings)()


class RayPool(EnginePool):
    """Between `ray.min_engines` and `ray.max_engines` engines, on any nodes of the cluster with room for them.

    The nodes call `make_engine`. Raises StartupError for settings that do not fit together.
    """

    def __init__(
        self,
        make_engine: Callable[[], EngineLike],
        settings: Settings,
        cluster: Membership | None = None,
        name: str = "ray",
    ) -> None:
        """`cluster`: a membership that pools share, which this pool does not end; default: one of its own."""
        self._make_engine = make_engine
        self._name = name
        self._settings = settings
        self._bounds = _bounds(settings.ray)
        self._cluster = cluster or Membership(settings.ray.address)
        self._leaves = cluster is None
        self._share = Share(0.0, 0.0)  # set by `join`
        self._replica_numbers = count()
        self._scaling: asyncio.Task[None] | None = None
        _check_devices(settings)
        factories = [self._next_factory() for _ in range(self._bounds.min_engines)]
        super().__init__(factories, settings.supervision, loras=settings.engine.loras)

    async def join(self) -> None:
        """Join the cluster: the first part of `start`, which must precede the first use of gRPC; see `Membership`."""
        resources = await self._cluster.join()
        self._share = _share(self._settings, resources)
        if self._settings.ray.address is None:
            _check_room(self._bounds.min_engines, self._share, resources)

    async def start(self) -> None:
        try:
            await self.join()
        except BaseException:
            await self.close()
            raise
        await super().start()
        self._scaling = keep_running(
            lambda: autoscale(self, self._next_factory, self._bounds), "the scaling of the pool"
        )

    async def close(self) -> None:
        await cancel_and_wait(self._scaling)
        await super().close()
        if self._leaves:
            await self._cluster.leave()

    def _next_factory(self) -> HandleFactory:
        name = f"{self._name}:{next(self._replica_numbers)}"

        def make_handle() -> Handle:
            return RayHandle(self._make_engine, self._share, name=name, log=self._settings.log)

        return make_handle


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
