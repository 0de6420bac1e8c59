"""An engine in a Ray actor, as its supervisor and its front reach it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from voxcpm_grpc import progress
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc.messages import Command, Heartbeat, Ready, Report, StartFailed, Starting, Stop
from voxcpm_grpc.logs import DEFAULT, LogOptions
from voxcpm_grpc.pool.engines.local import START_SECONDS, STOP_SECONDS
from voxcpm_grpc.pool.ray.actor import VoxCPMEngine
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.worker.engine_like import EngineLike

logger = logging.getLogger(__name__)

THREADS = ("run", "post", "reports")  # each method of the actor has a thread
NOTICE_SECONDS = 15.0  # seconds without a node that has room; then the log reports it
CAUSE_SECONDS = 0.5  # seconds after the end of an actor, for Ray to report its cause
KILL_SECONDS = 10.0  # seconds for Ray to confirm that an actor has ended
LARGE_BYTES = 1 << 20  # bytes of commands; copying more would block the event loop


@dataclass(frozen=True, slots=True)
class Share:
    """The resources of a node that an engine takes."""

    cpus: float
    gpus: float

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"


class RayConnection:
    """The connection of the only front to an engine, through its actor; implements `pool.directory.Connection`."""

    def __init__(self, engine: RayEngine, received: asyncio.Queue[list[Report] | None]) -> None:
        """received: the reports, and None after the last ones"""
        self._engine = engine
        self._received = received

    def post(self, command: Command) -> None:
        self._engine.post(command)

    async def reports(self) -> AsyncGenerator[list[Report]]:
        while (reports := await self._received.get()) is not None:
            yield reports

    def end(self) -> None:
        self._received.put_nowait(None)

    def close(self) -> None:
        pass


class RayEngine:
    """An engine in an actor on any node with room for its `share`; implements `pool.supervised.Engine`.

    Ray must be connected. The actor calls `make_engine`, which Ray must be able to pickle. Ray neither restarts the
    actor nor repeats a call, because the supervisor restarts engines. Reports to the front pass through `reports`.
    """

    def __init__(
        self,
        make_engine: Callable[[], EngineLike],
        share: Share,
        *,
        name: str = "engine",
        log: LogOptions = DEFAULT,
        start_seconds: float = START_SECONDS,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self.name = name
        self._arguments = make_engine, name, log
        self._share = share
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds
        self._actor: Any = None  # Ray gives this handle of the actor
        self._sent: Any = None  # Ray streams the actor's `reports`
        self._running: asyncio.Task[None] | None = None  # the task ends with the engine's loop
        self._received: asyncio.Queue[list[Report] | None] = asyncio.Queue()
        self._outbox: list[bytes] = []
        self._posted = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._broken = False  # an error on this side sets it; commands may then be lost
        self._closing = False

    async def start(self) -> ModelInfo:
        from ray.exceptions import RayError

        try:
            async with asyncio.timeout(self._start_seconds):
                self._actor = await asyncio.to_thread(self._create)
                await self._wait_for_node()
                self._running = asyncio.create_task(self._run())
                self._sent = self._call("reports", num_returns="streaming")
                info = await self._wait_until_ready()
        except TimeoutError:
            raise StartupError(
                f"{self.name} was not ready after {self._start_seconds:g} seconds; "
                f"it needs a node with {self._share} to spare"
            ) from None
        except RayError as error:
            raise StartupError(
                f"{self.name} cannot run on its node, which needs the front's versions of Python, Ray and "
                f"voxcpm-grpc[server,ray]: {last_line(error)}"
            ) from None
        self._sending = asyncio.create_task(self._send(), name=f"commands to {self.name}")
        return info

    def post(self, command: Command) -> None:
        data = encoding.encode(command)
        if self._running and not self._running.done():
            self._outbox.append(data)
            self._posted.set()

    def connect(self) -> RayConnection:
        return RayConnection(self, self._received)

    async def reports(self) -> AsyncGenerator[list[Report]]:
        """Yield the heartbeats, and the reports of the start. All others are for the front."""
        from ray.exceptions import RayError

        with contextlib.suppress(RayError):  # `_run` logs it
            async for item in self._sent:
                for data in await item:
                    reports = encoding.decode_reports(data)
                    if isinstance(reports[0], Heartbeat | Ready | Starting | StartFailed):
                        yield reports
                    else:
                        self._received.put_nowait(reports)
                if self._broken:  # heartbeats still arrive, so this is noticed soon
                    return
        if self._running:  # it has ended or ends soon, and its result holds the cause for the log
            await asyncio.wait([self._running], timeout=CAUSE_SECONDS)

    async def close(self, *, force: bool = False) -> None:
        self._closing = True
        if self._sending and self._running and not force:
            self.post(Stop())
            await asyncio.wait([self._running], timeout=self._stop_seconds)
        if self._actor is not None:
            await self._kill()
            self._actor = None  # a second kill without a cluster would make Ray start one
        for task in filter(None, (self._sending, self._running)):
            task.cancel()
            await asyncio.wait([task])

    def _create(self) -> Any:
        """Create the actor. Blocks, because Ray sends the class with it."""
        return _actor_class().options(num_cpus=self._share.cpus, num_gpus=self._share.gpus).remote(*self._arguments)

    def _call(self, method: str, *arguments: object, **options: object) -> Any:
        """Call a method of the actor; returns Ray's reference to the result."""
        return getattr(self._actor, method).options(concurrency_group=method, **options).remote(*arguments)

    async def _wait_for_node(self) -> None:
        """Wait until a node has created the actor."""
        created = asyncio.create_task(_result(self._actor.__ray_ready__.remote()))
        try:
            await asyncio.wait([created], timeout=NOTICE_SECONDS)
            if not created.done():
                logger.warning("%s waits for a node with %s to spare", self.name, self._share)
            await created
        finally:
            created.cancel()

    async def _run(self) -> None:
        from ray.exceptions import RayError

        try:
            await self._call("run")
        except RayError as error:
            if not self._closing:
                logger.error("Ray lost %s: %s", self.name, last_line(error))
        except Exception:
            logger.exception("the state of %s is unknown; it is given up", self.name)
            self._broken = True

    async def _wait_until_ready(self) -> ModelInfo:
        on_progress = progress.forwarder(self.name)
        async with contextlib.aclosing(self.reports()) as received:
            async for reports in received:
                match reports:
                    case [Ready(info)]:
                        return info
                    case [Starting(step)]:
                        on_progress(step)
                    case [StartFailed(message)]:
                        raise StartupError(message)
        raise StartupError(f"{self.name} ended before it was ready; Ray's log of its actor may say why")

    async def _send(self) -> None:
        """Send the commands with one call at a time, because Ray may reorder concurrent calls."""
        from ray.exceptions import RayError

        try:
            while True:
                await self._posted.wait()
                self._posted.clear()
                commands, self._outbox = self._outbox, []
                if sum(map(len, commands)) < LARGE_BYTES:
                    await self._call("post", commands)
                else:
                    await (await asyncio.to_thread(self._call, "post", commands))
        except RayError:
            pass  # `_run` logs it
        except Exception:
            logger.exception("commands to %s cannot be sent; it is given up", self.name)
            self._broken = True

    async def _kill(self) -> None:
        import ray
        from ray.exceptions import RayError

        await asyncio.to_thread(ray.kill, self._actor)
        try:
            async with asyncio.timeout(KILL_SECONDS):
                while True:  # the actor may still answer a call
                    await self._call("post", [])
        except RayError:
            pass
        except TimeoutError:
            logger.error("Ray has not confirmed the end of %s within %g seconds", self.name, KILL_SECONDS)


@functools.cache
def _actor_class() -> Any:
    import ray

    options: dict[str, Any] = {"concurrency_groups": dict.fromkeys(THREADS, 1)}
    return ray.remote(max_restarts=0, max_task_retries=0, **options)(VoxCPMEngine)


async def _result(reference: Any) -> Any:
    return await reference


def last_line(error: Exception) -> str:
    """The last line of an error of Ray, which holds the cause without the traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
