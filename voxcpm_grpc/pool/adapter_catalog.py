"""The LoRA adapters of a model: the names that are in use, and what a front's requests may choose."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from voxcpm_grpc import lora_files
from voxcpm_grpc.errors import AlreadyExists, NotFound, Reason, Unavailable
from voxcpm_grpc.ipc.messages import Keep, Registration
from voxcpm_grpc.request import Adapter

RETRY_SECONDS = 1.0
MAX_SHOWN = 64  # characters of an unknown name in an error

OnChange = Callable[[tuple[Registration, ...]], None]
"""Receives all registrations of a model, in their order."""


def registered(adapter: Adapter) -> Registration:
    """A complete registration, as those of the settings are."""
    return Registration(uuid.uuid4().hex, adapter, is_registered=True)


class NameOwner(Protocol):
    """The registrations of a model, one for each name.

    A front is attached with a function that receives all of them, now and after each change. `change` takes over what a
    front has changed, unless another registration has the name.
    """

    def attach_front(self, front: str, on_change: OnChange) -> None: ...
    def change(self, front: str, registration: Registration) -> None: ...


class AdapterNames:
    """The NameOwner of all fronts, in the process that owns the engines."""

    def __init__(self) -> None:
        self._by_name: dict[str, tuple[str, Registration]] = {}  # each has its front
        self._fronts: dict[str, OnChange] = {}

    def attach_front(self, front: str, on_change: OnChange) -> None:
        self._fronts[front] = on_change
        on_change(self._registrations)

    def detach_front(self, front: str) -> None:
        """Forget a front that has ended, with its registrations that are not complete. An unknown one is ignored."""
        self._fronts.pop(front, None)
        for owner, one in list(self._by_name.values()):
            if owner == front and not one.is_registered:
                self.change(front, replace(one, is_over=True))

    def change(self, front: str, registration: Registration) -> None:
        name = registration.adapter.name
        _, holder = self._by_name.get(name, (front, registration))
        if holder.id != registration.id:
            return
        self._by_name.pop(name, None)
        if not registration.is_over:
            self._by_name[name] = front, registration  # it stands behind those that were complete before
        for on_change in list(self._fronts.values()):
            on_change(self._registrations)

    @property
    def _registrations(self) -> tuple[Registration, ...]:
        return tuple(registration for _, registration in self._by_name.values())


class AdapterEngine(Protocol):
    """An engine that takes commands."""

    def post(self, command: Keep) -> None: ...

    async def preload(self, adapter: Adapter) -> None:
        """Let the engine read an adapter. Raises its error, or Unavailable if it is lost meanwhile."""
        ...


class AdapterCatalog:
    """The adapters that requests of a front may choose. Belongs to one event loop.

    A stream holds the Adapter that it has found. So an adapter that is unregistered meanwhile stays in the engines as
    long as a stream refers to it.

    registered: those that new turns may choose, in the order of their registration; for any thread
    """

    def __init__(self, engines: Callable[[], Iterable[AdapterEngine]], names: NameOwner, front: str) -> None:
        """`engines` returns those that take commands. `front` names this front among those of `names`."""
        self.registered: tuple[Adapter, ...] = ()
        self._engines = engines
        self._change = partial(names.change, front)
        self._registrations: dict[str, Registration] = {}  # the keys of this one and the next two are ids
        self._own: dict[str, Adapter] = {}  # this front lets the engines read these
        self._withdrawn: dict[str, weakref.ref[Adapter]] = {}  # streams may still refer to these
        self._late: set[str] = set()  # another registration has the name of these ids
        self._changed = asyncio.Event()
        names.attach_front(front, self._update)

    def find(self, name: str) -> Adapter:
        """The adapter that new turns get for a name. Raises NotFound."""
        for adapter in self.registered:
            if adapter.name == name:
                return adapter
        known = ", ".join(adapter.name for adapter in self.registered)
        raise NotFound(
            f"there is no LoRA adapter {name[:MAX_SHOWN]!r}; the server has "
            f"{known or 'none; its operator adds them with --lora NAME=DIRECTORY'}",
            field="lora",
            reason=Reason.LORA_NOT_FOUND,
            lora=name,
        )

    def require_new(self, name: str) -> None:
        """Raise AlreadyExists if a registration has the name, so that another one would fail."""
        if any(one.adapter.name == name for one in self._registrations.values()):
            raise _name_in_use(name)

    async def register(self, name: str, source: str, directory: Path) -> Adapter:
        """Let all engines read the adapter in `directory`. Returns when turns may choose it.

        Raises InvalidRequest for its files, AlreadyExists for its name, FailedPrecondition if the engines take none,
        and Unavailable without engines. Then, and if it is cancelled, no engine keeps it.
        """
        adapter = await asyncio.to_thread(lora_files.describe, name, source, directory)
        self.require_new(name)
        registration = Registration(uuid.uuid4().hex, adapter)
        self._own[registration.id] = adapter
        try:
            self._change(registration)
            await self._until(lambda: registration.id in self._registrations or registration.id in self._late)
            if registration.id in self._late:
                raise _name_in_use(name)
            await self._read_everywhere(adapter)
            self._change(replace(registration, is_registered=True))
            await self._until(lambda: not self._is_own(registration.id))
        except BaseException:
            self._change(replace(registration, is_over=True))
            raise
        finally:
            del self._own[registration.id]
            self._late.discard(registration.id)
            self._keep()
        return adapter

    async def unregister(self, name: str) -> Adapter:
        """Withdraw an adapter from new turns. Engines free it when no stream of any front holds it. Raises NotFound."""
        adapter = self.find(name)
        [registration] = [one for one in self._registrations.values() if one.adapter is adapter]
        self._change(replace(registration, is_over=True))
        await self._until(lambda: registration.id not in self._registrations)
        return adapter

    def on_ready(self, engine: AdapterEngine) -> None:
        """An engine takes commands now. It reads the adapters before the first request that names one."""
        engine.post(Keep(self._kept()))

    def _update(self, registrations: tuple[Registration, ...]) -> None:
        """Take over the registrations of the owner of the names."""
        names = {one.adapter.name: one.id for one in registrations}
        self._late |= {id for id, adapter in self._own.items() if names.get(adapter.name, id) != id}
        known = {id: one.adapter for id, one in self._registrations.items()} | self._own  # streams refer to these
        gone = [one for id, one in self._registrations.items() if one.is_registered and id not in names.values()]
        self._registrations = {one.id: replace(one, adapter=known.get(one.id, one.adapter)) for one in registrations}
        self.registered = tuple(one.adapter for one in self._registrations.values() if one.is_registered)
        for one in gone:
            self._withdraw(one.id, one.adapter)
        self._keep()
        self._changed.set()
        self._changed = asyncio.Event()

    def _kept(self) -> tuple[Adapter, ...]:
        """The adapters that requests of this front may name."""
        withdrawn = [adapter for reference in self._withdrawn.values() if (adapter := reference())]
        # Of equal content the last one counts, whose files stay.
        found = (*withdrawn, *self._own.values(), *self.registered)
        return tuple({adapter.fingerprint: adapter for adapter in found}.values())

    def _keep(self) -> None:
        """Let all engines keep these adapters and no others."""
        kept = Keep(self._kept())
        for engine in self._engines():
            engine.post(kept)

    def _withdraw(self, id: str, adapter: Adapter) -> None:
        """Let engines keep an adapter until no stream refers to it any more."""
        loop = asyncio.get_running_loop()

        def free(_: object) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._free, id)

        self._withdrawn[id] = weakref.ref(adapter, free)

    def _free(self, id: str) -> None:
        del self._withdrawn[id]
        self._keep()

    async def _read_everywhere(self, adapter: Adapter) -> None:
        """Return when each engine has read an adapter. Raises the error of one that cannot, or Unavailable."""
        read: set[AdapterEngine] = set()

        async def preload(engine: AdapterEngine) -> None:
            with contextlib.suppress(Unavailable):  # the engine was lost, and the next one reads what streams may name
                await engine.preload(adapter)
                read.add(engine)

        while missing := [engine for engine in self._engines() if engine not in read]:
            try:
                async with asyncio.TaskGroup() as group:
                    for engine in missing:
                        group.create_task(preload(engine))
            except BaseExceptionGroup as errors:
                raise errors.exceptions[0] from None
        if not read:
            raise Unavailable(
                "no engine can read a LoRA adapter now; try again", retry_after=RETRY_SECONDS, reason=Reason.NO_ENGINE
            )

    def _is_own(self, id: str) -> bool:
        """True while the owner of the names has an own registration as one that is not complete."""
        found = self._registrations.get(id)
        return found is not None and not found.is_registered

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()


def _name_in_use(name: str) -> AlreadyExists:
    return AlreadyExists(
        f"there is a LoRA adapter {name!r} already; unregister it first, or choose another name",
        field="name",
        reason=Reason.LORA_EXISTS,
        lora=name,
    )
