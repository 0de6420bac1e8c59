"""LoRA adapters of several fronts: the host registers them for all, and each front knows what it may choose."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from voxcpm_grpc.errors import Internal, NotFound, Reason, VoxCPMError
from voxcpm_grpc.ipc.messages import (
    Command,
    Failed,
    Loras,
    RegisteredLoras,
    RegisterLora,
    ReleaseLora,
    Report,
    UnregisterLora,
)
from voxcpm_grpc.pool.adapters import AdapterCatalog, AdapterEngine, OnRegistered
from voxcpm_grpc.pool.background import keep_running
from voxcpm_grpc.request import LoraInfo

logger = logging.getLogger(__name__)


class Front(Protocol):
    """A front as the host knows it."""

    id: str

    def post(self, command: Command) -> None: ...


class HostLoras:
    """The catalogs of a host, one for each model, and the registrations that fronts have asked for."""

    def __init__(self, models: Sequence[Iterable[str]]) -> None:
        """`models`: the names of the replicas of each model."""
        self._catalogs: dict[str, AdapterCatalog] = {}  # by replica
        self._models: dict[str, AdapterCatalog] = {}  # by the first replica of each
        for replicas in models:
            names, catalog = tuple(replicas), AdapterCatalog()
            self._models[names[0]] = catalog
            self._catalogs |= dict.fromkeys(names, catalog)
        self._registrations: dict[str, tuple[str, asyncio.Task[None]]] = {}  # by id, with the front

    def catalog(self, replica: str) -> AdapterCatalog:
        """The adapters of the model to which a replica belongs."""
        return self._catalogs[replica]

    def attach_front(self, front: Front) -> None:
        def publish(replica: str, infos: tuple[LoraInfo, ...]) -> None:
            front.post(RegisteredLoras(replica, infos))

        for replica, catalog in self._models.items():
            catalog.attach_front(front.id, partial(publish, replica))

    def detach_front(self, front: Front) -> None:
        """Forget a front that has ended, with its streams and registrations."""
        for owner, task in self._registrations.values():
            if owner == front.id:
                task.cancel()
        for catalog in self._models.values():
            catalog.detach_front(front.id)

    async def on_report(self, front: Front, report: Report) -> None:
        """Handle a report of a front; all that are not about adapters are ignored."""
        match report:
            case RegisterLora(info, replica):
                task = keep_running(lambda: self._register(front, info, replica), "the registration of a LoRA adapter")
                self._registrations[info.id] = front.id, task
                task.add_done_callback(lambda _: self._registrations.pop(info.id))
            case UnregisterLora(id):
                await self._unregister(front, id)
            case ReleaseLora(id):
                for catalog in self._models.values():
                    catalog.release(front.id, id)

    async def _register(self, front: Front, info: LoraInfo, replica: str) -> None:
        try:
            await self._catalogs[replica].register(info)
        except VoxCPMError as error:
            front.post(Failed.of(info.id, error))
        except Exception:
            logger.exception("a LoRA adapter cannot be registered")
            front.post(Failed.of(info.id, Internal()))

    async def _unregister(self, front: Front, id: str) -> None:
        if registration := self._registrations.get(id):  # its caller has gone
            registration[1].cancel()
        for catalog in self._models.values():
            if catalog.has(id):
                await catalog.unregister(id)
                return
        front.post(
            Failed.of(
                id, NotFound("this LoRA adapter was unregistered meanwhile", field="name", reason=Reason.LORA_NOT_FOUND)
            )
        )


class HostRegistry:
    """The adapters of a model of the host, for the pool of one front; implements `pool.adapters.AdapterRegistry`.

    An adapter is shown to the pool when an engine has reported it, because the host and the engines use different
    connections. `replica` is one of the model's, `send` sends a report to the host.
    """

    def __init__(self, replica: str, send: Callable[[Report], None]) -> None:
        self._replica = replica
        self._send = send
        self._registered: dict[str, LoraInfo] = {}  # by id
        self._shown: set[str] = set()
        self._reported: dict[AdapterEngine, set[str]] = {}  # ids that each engine has, or cannot read
        self._on_registered: OnRegistered = lambda _: None
        self._waiting: set[str] = set()  # for an answer of the host
        self._errors: dict[str, VoxCPMError] = {}
        self._changed = asyncio.Event()

    async def register(self, info: LoraInfo) -> None:
        self._send(RegisterLora(info, self._replica))
        try:
            await self._answered(info.id, lambda: info.id in self._shown)
        except asyncio.CancelledError:
            self._send(UnregisterLora(info.id))
            raise

    async def unregister(self, id: str) -> None:
        self._send(UnregisterLora(id))
        await self._answered(id, lambda: id not in self._registered)

    def attach_front(self, front: str, on_registered: OnRegistered) -> None:
        self._on_registered = on_registered

    def release(self, front: str, id: str) -> None:
        self._send(ReleaseLora(id))

    def on_ready(self, engine: AdapterEngine, adapters: Iterable[LoraInfo]) -> None:
        self._reported[engine] = {info.id for info in adapters}
        self._show()

    def on_report(self, engine: AdapterEngine, report: Loras) -> None:
        self._reported[engine] = {one.id for one in (*report.infos, *report.failed)}
        self._show()

    def on_lost(self, engine: AdapterEngine) -> None:
        self._reported.pop(engine, None)

    # ---- messages of the host

    def on_registered(self, infos: tuple[LoraInfo, ...]) -> None:
        before = self._registered
        self._registered = {info.id: info for info in infos}
        for id in before.keys() - self._registered.keys() - self._shown:
            self._send(ReleaseLora(id))  # the pool has never seen it
        self._show()

    def on_failed(self, failed: Failed) -> None:
        if failed.id in self._waiting:
            self._errors[failed.id] = failed.error()
            self._notify()

    def _show(self) -> None:
        reported = set().union(*self._reported.values())
        self._shown = self._registered.keys() & (self._shown | reported)
        self._on_registered(tuple(info for id, info in self._registered.items() if id in self._shown))
        self._notify()

    async def _answered(self, id: str, done: Callable[[], bool]) -> None:
        """Wait until `done()` holds. Raises the error with which the host answers for an id."""
        self._waiting.add(id)
        try:
            while not done():
                if error := self._errors.get(id):
                    raise error
                await self._changed.wait()
        finally:
            self._waiting.discard(id)
            self._errors.pop(id, None)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
