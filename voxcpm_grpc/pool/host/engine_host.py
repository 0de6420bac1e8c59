"""The owner of engines and fronts that are processes of their own: it keeps all of them up, and connects them.

What a caller says and hears goes between front and engine directly.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import zmq

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.ipc.child_process import Addresses, ChildProcess
from voxcpm_grpc.ipc.messages import Attach, Detach, EngineCame, EngineWent, Report
from voxcpm_grpc.ipc.socket_folder import SocketFolder
from voxcpm_grpc.pool.background import close_all
from voxcpm_grpc.pool.handle import Handle, Launch, processes
from voxcpm_grpc.pool.supervisor import Supervisor
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.schema import EngineSettings, SupervisionSettings

FRONT_START_SECONDS = 120.0
# Of a front: its signs of life come out of its event loop, which whatever large it does for one caller holds up, while
# an engine has a thread for them. A front that is lost too early costs all its callers their streams, too late a pause.
FRONT_SILENCE_SECONDS = 5.0
LEAVE_SECONDS = 10.0  # for a front to end once it has drained
NAME_LENGTH = 40  # at most, of a socket and of the folder made for it


class EngineHost:
    """Engines and fronts, each in a process of its own, each followed by another when it is lost.

    A front that dies costs its own streams; an engine that dies, what it was doing for any front. Raises StartupError
    where their sockets cannot be.
    """

    def __init__(self, engines: Mapping[str, Launch], supervision: SupervisionSettings) -> None:
        self._supervision = supervision
        self._folder = _socket_folder()
        self._engines = {place: _Engine(self, place, launch, supervision) for place, launch in engines.items()}
        self._fronts: dict[str, FrontProcess] = {}
        self._keepers: list[_FrontKeeper] = []
        self._sockets = itertools.count()
        self._over = asyncio.Event()

    @classmethod
    def of_processes(
        cls,
        directory: Path,
        name: str,
        engines: Mapping[str, EngineSettings],
        supervision: SupervisionSettings,
        *,
        log_level: str,
    ) -> EngineHost:
        """For the checkpoint in `directory`. Starts with `start`."""
        return cls(processes(directory, name, engines, log_level), supervision)

    @property
    def places(self) -> list[str]:
        return list(self._engines)

    @property
    def info(self) -> ModelInfo:
        """The model that is served. Known once started."""
        return next(engine.info for engine in self._engines.values() if engine.info)

    async def start(self, fronts: Mapping[str, Callable[[Addresses], None]], *, drain_seconds: float) -> None:
        """Bring up the engines, then the fronts: what each does, by its name. Raises StartupError.

        A front is given `drain_seconds` to end its streams when the host closes.
        """
        await _all(engine.supervisor.start() for engine in self._engines.values())
        for name, main in fronts.items():
            launch = partial(FrontProcess, self, name, main, drain_seconds)
            self._keepers.append(_FrontKeeper(launch, self, self._supervision))
        await _all(keeper.supervisor.start() for keeper in self._keepers)

    async def given_up(self) -> None:
        """Wait until no engine, or no front, is left and no attempt to start one."""
        await self._over.wait()

    async def close(self) -> None:
        """Let the fronts drain, then stop the engines. Whoever cancels this does not wait for open streams."""
        supervisors = [keeper.supervisor for keeper in self._keepers]
        try:
            await close_all(supervisor.close() for supervisor in supervisors)
        finally:
            supervisors += [engine.supervisor for engine in self._engines.values()]
            await close_all(supervisor.close(force=True) for supervisor in supervisors)
            self._folder.close()

    # ---- told by engines and fronts

    def front_comes(self, front: FrontProcess) -> None:
        self._fronts[front.id] = front
        for engine in self._engines.values():
            self._connect(front, engine)

    def front_went(self, front: FrontProcess) -> None:
        if self._fronts.pop(front.id, None):
            for engine in self._engines.values():
                if engine.handle:
                    engine.handle.post(Detach(front.id))
            for path in self._folder.path.glob(f"{front.id}-*"):
                path.unlink(missing_ok=True)

    def engine_came(self, engine: _Engine) -> None:
        for front in self._fronts.values():
            self._connect(front, engine)

    def engine_went(self, engine: _Engine) -> None:
        for front in self._fronts.values():
            front.post(EngineWent(engine.place))

    def gave_up(self) -> None:
        engines, fronts = self._engines.values(), self._keepers
        if all(one.given_up for one in engines) or (fronts and all(one.given_up for one in fronts)):
            self._over.set()

    def check(self, info: ModelInfo) -> None:
        if any(engine.info and engine.info.fingerprint != info.fingerprint for engine in self._engines.values()):
            raise StartupError("the engines serve different models; give all of them the same checkpoint")

    def _connect(self, front: FrontProcess, engine: _Engine) -> None:
        if engine.handle:
            address = f"ipc://{self._folder.path}/{front.id}-{next(self._sockets)}"
            front.post(EngineCame(engine.place, address))
            engine.handle.post(Attach(front.id, address))


def _socket_folder() -> SocketFolder:
    """Raises StartupError if the paths in it would be too long for sockets."""
    parent, most = tempfile.gettempdir(), zmq.IPC_PATH_MAX_LEN - NAME_LENGTH
    if (length := len(os.fsencode(parent))) > most:
        raise StartupError(
            f"the folder for temporary files, {parent}, has a path of {length} bytes; the sockets between fronts and "
            f"engines leave it {most}; set TMPDIR to a shorter one"
        )
    return SocketFolder()


class FrontProcess(ChildProcess):
    """A front in a process of its own, told of every engine of the host from its beginning."""

    _numbers = itertools.count()

    def __init__(self, host: EngineHost, name: str, main: Callable[[Addresses], None], drain_seconds: float) -> None:
        super().__init__(
            main,
            name=name,
            start_seconds=FRONT_START_SECONDS,
            stop_seconds=drain_seconds + LEAVE_SECONDS,
            daemon=False,  # it has children
        )
        self.id = f"{next(self._numbers)}"
        self._host = host

    async def start(self) -> ModelInfo:
        self._host.front_comes(self)
        return await super().start()

    async def close(self, *, force: bool = False) -> None:
        await super().close(force=force)
        self._host.front_went(self)


class _Engine:
    """The place of an engine; the tenant of its supervisor."""

    def __init__(self, host: EngineHost, place: str, launch: Launch, supervision: SupervisionSettings) -> None:
        self.place = place
        self.handle: Handle | None = None
        self.info: ModelInfo | None = None
        self.given_up = False
        self.supervisor = Supervisor(launch, self, supervision)
        self._host = host

    def came(self, handle: Handle, info: ModelInfo) -> None:
        self._host.check(info)
        self.handle, self.info = handle, info
        self._host.engine_came(self)

    def said(self, reports: list[Report]) -> None:
        """Nothing: what it has to say it says to the fronts."""

    def went(self, why: str) -> None:
        self.handle = None
        self._host.engine_went(self)

    def gave_up(self, why: str) -> None:
        self.given_up = True
        self._host.gave_up()


class _FrontKeeper:
    """The place of a front; the tenant of its supervisor. The process itself says when it comes and goes."""

    def __init__(self, launch: Launch, host: EngineHost, supervision: SupervisionSettings) -> None:
        self.given_up = False
        patience = max(FRONT_SILENCE_SECONDS, supervision.silence_seconds)
        self.supervisor = Supervisor(launch, self, supervision.model_copy(update={"silence_seconds": patience}))
        self._host = host

    def came(self, handle: Handle, info: ModelInfo) -> None: ...

    def said(self, reports: list[Report]) -> None: ...

    def went(self, why: str) -> None: ...

    def gave_up(self, why: str) -> None:
        self.given_up = True
        self._host.gave_up()


async def _all(starts: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Await all at once. Raises the first error."""
    try:
        async with asyncio.TaskGroup() as group:
            for start in starts:
                group.create_task(start)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
