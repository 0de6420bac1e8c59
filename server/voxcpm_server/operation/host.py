"""The other fronts of a host, and its engines that admins take out of service and start again."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from voxcpm_grpc.errors import FailedPrecondition, NotFound, Reason, Unavailable
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.replica import Replica
from voxcpm_server.models import Models


class Fronts(Protocol):
    """The connection of a front to the others. `name` is its own, such as `front 0`."""

    name: str

    def answer(self, topic: str, function: Callable[[], Awaitable[bytes]]) -> None:
        """Answer the questions of others about a topic with this function from now on."""

    async def ask_others(self, topic: str) -> Mapping[str, bytes]:
        """The answers of the other fronts by their names. Those that do not answer within a moment are left out."""
        ...

    def receive(self, topic: str, handler: Callable[[bytes], None]) -> None:
        """Handle what others send about a topic with this function from now on."""

    def send_others(self, topic: str, body: bytes) -> None:
        """Send a body to the other fronts that are ready; never waits."""


log = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
MAX_SHOWN = 64  # characters of an unknown name in an error


class EngineControl:
    """Drains and starts the engines of all models of a server.

    Every method raises Unavailable before `serve`, and NotFound for an unknown engine.
    """

    def __init__(self) -> None:
        self._models: Models | None = None

    def serve(self, models: Models) -> None:
        """Use the engines of these models from now on."""
        self._models = models

    async def drain(self, engine: str, *, restart: bool, caller: str) -> None:
        """Let others go on with the streams of an engine, and return when its process has ended.

        Raises FailedPrecondition without others, and Unavailable for an engine that starts.
        """
        pool, replica = self._find(engine)
        if replica.drained:
            if restart:
                pool.start_engine(engine)
            return
        if not (replica.ready or replica.out_of_service):
            raise _not_ready(f"{engine} is starting")
        if not any(other.ready for other in pool.replicas if other is not replica):
            raise FailedPrecondition(
                f"no other engine of {pool.info.name} takes requests; wait until one is ready",
                field="engine",
                reason=Reason.LAST_ENGINE,
                engine=engine,
            )
        log.info(LogLine("an engine leaves service", engine=engine, restart=restart, caller=caller))
        pool.drain_engine(engine, restart=restart)
        while not replica.drained:
            await pool.changed()

    async def start(self, engine: str, *, caller: str) -> None:
        """Start an engine that was taken out of service. Does nothing for one that serves."""
        pool, _ = self._find(engine)
        log.info(LogLine("an engine is started", engine=engine, caller=caller))
        pool.start_engine(engine)

    def _find(self, engine: str) -> tuple[EnginePool, Replica]:
        if self._models is None:
            raise _not_ready("the server is not ready yet")
        found = [(model.pool, replica) for model in self._models for replica in model.pool.replicas]
        for pool, replica in found:
            if replica.name == engine:
                return pool, replica
        known = ", ".join(replica.name for _, replica in found)
        raise NotFound(
            f"there is no engine {engine[:MAX_SHOWN]!r}; the server has {known}",
            field="engine",
            reason=Reason.ENGINE_NOT_FOUND,
            engine=engine,
        )


def _not_ready(cause: str) -> Unavailable:
    return Unavailable(f"{cause}; try again", retry_after=RETRY_SECONDS, reason=Reason.NOT_READY)
