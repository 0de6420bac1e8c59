"""An engine on a node of a Ray cluster, as its front sees it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.ipc import messages
from voxcpm_grpc.ipc.messages import Command, Ready, Report, StartFailed, Stop
from voxcpm_grpc.pool.handle import START_SECONDS, STOP_SECONDS
from voxcpm_grpc.pool.ray.actor import VoxCPMEngine
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.worker.dispatcher import EngineLike

logger = logging.getLogger(__name__)

THREADS = ("run", "post", "reports")  # of the actor: one for each method
NOTICE_SECONDS = 15.0  # without a node that has room, after which the log says so
CAUSE_SECONDS = 0.5  # for Ray to tell why an actor ended, after it told that
KILL_SECONDS = 10.0  # for Ray to confirm that an actor is gone
LARGE_BYTES = 1 << 20  # of letters, whose copying would hold up the event loop


@dataclass(frozen=True, slots=True)
class Share:
    """What an engine takes of its node."""

    cpus: float
    gpus: float

    def __str__(self) -> str:
        return f"{self.cpus:g} CPUs and {self.gpus:g} GPUs"


class RayHandle:
    """An engine in an actor, on whatever node has its `share` to spare. Ray must be connected.

    `make_engine` is called there, and Ray must be able to pickle it. Ray neither restarts the actor nor repeats a
    call: what follows the loss of an engine is the supervisor's to decide.
    """

    def __init__(
        self,
        make_engine: Callable[[], EngineLike],
        share: Share,
        *,
        name: str = "engine",
        log_level: str = "info",
        start_seconds: float = START_SECONDS,
        stop_seconds: float = STOP_SECONDS,
    ) -> None:
        self.name = name
        self._arguments = make_engine, name, log_level
        self._share = share
        self._start_seconds = start_seconds
        self._stop_seconds = stop_seconds
        self._actor: Any = None  # Ray's handle of it
        self._batches: Any = None  # Ray's stream of what `reports` yields there
        self._running: asyncio.Task[None] | None = None  # for as long as the engine's loop
        self._letters: list[bytes] = []
        self._posted = asyncio.Event()
        self._carrying: asyncio.Task[None] | None = None
        self._broken = False  # by a fault on our side, after which not all that is posted arrives
        self._closing = False

    async def start(self) -> ModelInfo:
        from ray.exceptions import RayError

        try:
            async with asyncio.timeout(self._start_seconds):
                self._actor = await asyncio.to_thread(self._create)
                await self._placed()
                self._running = asyncio.create_task(self._run())
                self._batches = self._call("reports", num_returns="streaming")
                info = await self._first_words()
        except TimeoutError:
            raise StartupError(
                f"{self.name} was not ready after {self._start_seconds:g} seconds; "
                f"it needs a node with {self._share} to spare"
            ) from None
        except RayError as error:
            raise StartupError(
                f"{self.name} cannot run on its node, which needs the front's versions of Python, Ray and "
                f"voxcpm-grpc[server,ray]: {gist(error)}"
            ) from None
        self._carrying = asyncio.create_task(self._carry(), name=f"letters to {self.name}")
        return info

    def post(self, command: Command) -> None:
        letter = messages.encode_command(command)
        if self._running and not self._running.done():
            self._letters.append(letter)
            self._posted.set()

    async def reports(self) -> AsyncGenerator[list[Report]]:
        from ray.exceptions import RayError

        with contextlib.suppress(RayError):  # `_run` tells of it
            async for batch in self._batches:
                for letter in await batch:
                    yield messages.decode_reports(letter)
                if self._broken:  # beats come still, so it is seen at once
                    return
        if self._running:  # which is over, or soon will be, and has the cause for the log
            await asyncio.wait([self._running], timeout=CAUSE_SECONDS)

    async def close(self, *, force: bool = False) -> None:
        self._closing = True
        if self._carrying and self._running and not force:
            self.post(Stop())
            await asyncio.wait([self._running], timeout=self._stop_seconds)
        if self._actor is not None:
            await self._kill()
            self._actor = None  # and no second time: asked without a cluster, Ray would start one
        for task in filter(None, (self._carrying, self._running)):
            task.cancel()
            await asyncio.wait([task])

    def _create(self) -> Any:
        """May take a while, for Ray sends the class along."""
        return _actor_class().options(num_cpus=self._share.cpus, num_gpus=self._share.gpus).remote(*self._arguments)

    def _call(self, method: str, *arguments: object, **options: object) -> Any:
        """Have the actor do something; returns Ray's promise of the result."""
        return getattr(self._actor, method).options(concurrency_group=method, **options).remote(*arguments)

    async def _placed(self) -> None:
        """Wait until a node has made the actor."""
        made = asyncio.create_task(_result(self._actor.__ray_ready__.remote()))
        try:
            await asyncio.wait([made], timeout=NOTICE_SECONDS)
            if not made.done():
                logger.warning("%s waits for a node with %s to spare", self.name, self._share)
            await made
        finally:
            made.cancel()

    async def _run(self) -> None:
        from ray.exceptions import RayError

        try:
            await self._call("run")
        except RayError as error:
            if not self._closing:
                logger.error("Ray lost %s: %s", self.name, gist(error))
        except Exception:
            logger.exception("%s cannot be followed; it is given up", self.name)
            self._broken = True

    async def _first_words(self) -> ModelInfo:
        async with contextlib.aclosing(self.reports()) as batches:
            async for reports in batches:
                match reports:
                    case [Ready(info)]:
                        return info
                    case [StartFailed(message)]:
                        raise StartupError(message)
        raise StartupError(f"{self.name} ended before it was ready; Ray's log of its actor may say why")

    async def _carry(self) -> None:
        """One call at a time, for calls in flight together may change places on the way."""
        from ray.exceptions import RayError

        try:
            while True:
                await self._posted.wait()
                self._posted.clear()
                letters, self._letters = self._letters, []
                if sum(map(len, letters)) < LARGE_BYTES:
                    await self._call("post", letters)
                else:
                    await (await asyncio.to_thread(self._call, "post", letters))
        except RayError:
            pass  # `_run` tells of it
        except Exception:
            logger.exception("letters to %s cannot be sent; it is given up", self.name)
            self._broken = True

    async def _kill(self) -> None:
        import ray
        from ray.exceptions import RayError

        await asyncio.to_thread(ray.kill, self._actor)
        try:
            async with asyncio.timeout(KILL_SECONDS):
                while True:  # it may answer once more
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


async def _result(promise: Any) -> Any:
    return await promise


def gist(error: Exception) -> str:
    """The lines of Ray's report that say what happened, without its traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
