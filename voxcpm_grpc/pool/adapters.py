"""The LoRA adapters of a model: the process that owns the engines registers each with all of them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from voxcpm_grpc import lora_files
from voxcpm_grpc.errors import AlreadyExists, InvalidRequest, NotFound, Reason, Unavailable, VoxCPMError
from voxcpm_grpc.ipc.messages import Loras, RegisterLora, UnregisterLora
from voxcpm_grpc.request import LoraInfo

RETRY_SECONDS = 1.0

OnRegistered = Callable[[tuple[LoraInfo, ...]], None]
"""Receives the adapters that new streams may choose, in the order of their registration."""


async def describe(name: str, source: str, directory: Path) -> LoraInfo:
    """Describe the adapter in `directory` for a registration, under a new id. Raises InvalidRequest."""
    try:
        fingerprint = await asyncio.to_thread(lora_files.fingerprint, directory)
    except OSError:
        raise InvalidRequest(
            f"the files of the LoRA adapter {name!r} cannot be read; make them readable for the server", field="source"
        ) from None
    return LoraInfo(id=uuid.uuid4().hex, name=name, source=source, directory=str(directory), fingerprint=fingerprint)


def name_in_use(name: str) -> AlreadyExists:
    return AlreadyExists(
        f"there is a LoRA adapter {name!r} already; unregister it first, or choose another name",
        field="name",
        reason=Reason.LORA_EXISTS,
        lora=name,
    )


class AdapterEngine(Protocol):
    """An engine that takes commands."""

    def post(self, command: RegisterLora | UnregisterLora) -> None: ...


class AdapterRegistry(Protocol):
    """The registration of LoRA adapters, as a front uses it. Belongs to one event loop.

    A front is attached with a function that receives the registered adapters, now and after each change. For each
    adapter that is registered no longer it calls `release` when none of its streams needs it.
    """

    async def register(self, info: LoraInfo) -> None:
        """Let all engines read an adapter, whose id is new. Returns when new streams may choose it.

        Raises AlreadyExists, Unavailable, or the error of an engine; then no engine keeps it. The same holds if the
        call is cancelled.
        """
        ...

    async def unregister(self, id: str) -> None:
        """Withdraw an adapter from new streams. The engines free it when every front has released it.

        Raises NotFound.
        """
        ...

    def attach_front(self, front: str, on_registered: OnRegistered) -> None: ...
    def release(self, front: str, id: str) -> None: ...

    def on_ready(self, engine: AdapterEngine, adapters: Iterable[LoraInfo]) -> None:
        """An engine takes commands, and has these adapters."""
        ...

    def on_report(self, engine: AdapterEngine, report: Loras) -> None: ...
    def on_lost(self, engine: AdapterEngine) -> None: ...


@dataclass(slots=True)
class _Engine:
    asked: set[str]  # ids that it had when it became ready or was asked to read since then
    known: set[str] = field(default_factory=set)
    failed: dict[str, VoxCPMError] = field(default_factory=dict)


@dataclass(slots=True)
class _Leaving:
    info: LoraInfo
    fronts: set[str]  # that may still send requests with it


class AdapterCatalog:
    """The registered adapters of a model, kept by the owner of its engines; an AdapterRegistry for all fronts.

    An engine that becomes ready is told to read all adapters that requests may name. Its own adapters of the start are
    registered, unless they were unregistered before.
    """

    def __init__(self) -> None:
        self._joining: dict[str, LoraInfo] = {}  # by id, as the next two
        self._registered: dict[str, LoraInfo] = {}
        self._leaving: dict[str, _Leaving] = {}
        self._of_start: set[str] = set()  # ids of adapters that engines load themselves
        self._engines: dict[AdapterEngine, _Engine] = {}
        self._fronts: dict[str, OnRegistered] = {}
        self._changed = asyncio.Event()

    async def register(self, info: LoraInfo) -> None:
        if info.name in self._names():
            raise name_in_use(info.name)
        self._joining[info.id] = info
        try:
            self._complete()
            while not self._is_everywhere(info.id):
                await self._changed.wait()
            self._registered[info.id] = info
        finally:
            del self._joining[info.id]
            if info.id not in self._registered:
                self._free(info.id)
        self._publish()

    async def unregister(self, id: str) -> None:
        if id not in self._registered:
            raise NotFound("this LoRA adapter was unregistered meanwhile", field="name", reason=Reason.LORA_NOT_FOUND)
        self._leaving[id] = _Leaving(self._registered.pop(id), set(self._fronts))
        self._publish()
        self._free_if_released(id)

    def attach_front(self, front: str, on_registered: OnRegistered) -> None:
        self._fronts[front] = on_registered
        on_registered(tuple(self._registered.values()))

    def detach_front(self, front: str) -> None:
        """Forget a front that has ended, with all its streams. An unknown one is ignored."""
        self._fronts.pop(front, None)
        for id in list(self._leaving):
            self.release(front, id)

    def release(self, front: str, id: str) -> None:
        if leaving := self._leaving.get(id):
            leaving.fronts.discard(front)
            self._free_if_released(id)

    def has(self, id: str) -> bool:
        """True if the adapter is registered."""
        return id in self._registered

    def on_ready(self, engine: AdapterEngine, adapters: Iterable[LoraInfo]) -> None:
        adapters = tuple(adapters)
        ids = {info.id for info in adapters}
        self._engines[engine] = _Engine(asked=set(ids), known=ids)
        new = [info for info in adapters if info.id not in self._of_start and info.name not in self._names()]
        self._of_start |= ids
        self._registered |= {info.id: info for info in new}
        for id in ids - self._registered.keys() - self._leaving.keys():
            engine.post(UnregisterLora(id))
        self._complete()
        self._notify()
        if new:
            self._publish()

    def on_report(self, engine: AdapterEngine, report: Loras) -> None:
        if state := self._engines.get(engine):
            state.known = {info.id for info in report.infos}
            state.failed = {failed.id: failed.error() for failed in report.failed}
            self._notify()

    def on_lost(self, engine: AdapterEngine) -> None:
        self._engines.pop(engine, None)
        self._notify()

    def _names(self) -> set[str]:
        return {info.name for info in (*self._registered.values(), *self._joining.values())}

    def _complete(self) -> None:
        """Tell each engine to read the adapters that it was not told to read so far."""
        leaving = (leaving.info for leaving in self._leaving.values())
        wanted = [*self._registered.values(), *leaving, *self._joining.values()]
        for engine, state in self._engines.items():
            for info in wanted:
                if info.id not in state.asked:
                    state.asked.add(info.id)
                    engine.post(RegisterLora(info))

    def _is_everywhere(self, id: str) -> bool:
        """True if all engines have an adapter. Raises the error of one that cannot read it."""
        if not self._engines:
            raise Unavailable(
                "no engine can read a LoRA adapter now; try again", retry_after=RETRY_SECONDS, reason=Reason.NO_ENGINE
            )
        for state in self._engines.values():
            if error := state.failed.get(id):
                raise error
        return all(id in state.known for state in self._engines.values())

    def _free_if_released(self, id: str) -> None:
        if (leaving := self._leaving.get(id)) and not leaving.fronts:
            del self._leaving[id]
            self._free(id)

    def _free(self, id: str) -> None:
        for engine, state in self._engines.items():
            if id in state.asked:
                state.asked.discard(id)
                engine.post(UnregisterLora(id))

    def _publish(self) -> None:
        registered = tuple(self._registered.values())
        for on_registered in list(self._fronts.values()):
            on_registered(registered)

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
