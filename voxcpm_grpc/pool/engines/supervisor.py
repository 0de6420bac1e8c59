"""The supervisor of an engine or front: starts it, watches its heartbeats, and replaces it when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncGenerator, Callable
from typing import Generic, Protocol, TypeVar

from voxcpm_grpc.aio.tasks import cancel_and_wait, keep_running
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.ipc.messages import Heartbeat, Report
from voxcpm_grpc.pool.estimates import Restarts
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.engine import SupervisionSettings

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
MIN_STEP_SECONDS = 1.5  # seconds of the smallest limit for a step, however short the steps of the warm-up were
# Otherwise the limit is this multiple of the longest step of the warm-up. Other programs of a host slow its CPU down
# much more than its GPU. With the smaller factor, a GPU that hangs is noticed within 2 s even if its steps take 0.3 s.
CPU_STEP_FACTOR, GPU_STEP_FACTOR = 20, 5
FIRST_PAUSE_SECONDS = 0.25
PAUSE_FACTOR = 4
# Heartbeats in a row, after which an engine that leaves has no work: that on its way to it has arrived.
IDLE_HEARTBEATS = 3
LOST, DRAINED = "%s is lost: %s", "it was taken out of service"
STABLE_SECONDS = 60.0  # an engine that ran this long does not count as one that fails soon after its start


class Supervised(Protocol):
    """One engine or front, from its start to its end. It is never restarted. Belongs to one event loop.

    `start` waits until it is ready, or raises StartupError. `reports` yields its reports, with a Heartbeat every
    `messages.HEARTBEAT_SECONDS`, until it has ended. `close` stops it: it may finish its work unless `force` is true,
    and is killed if it does not stop. `close` returns when the device is free; it may be called at any time and more
    than once.
    """

    name: str

    async def start(self) -> ModelInfo: ...
    def reports(self) -> AsyncGenerator[list[Report]]: ...
    async def close(self, *, force: bool = False) -> None: ...


S = TypeVar("S", bound=Supervised)


def _ignore(*_: object) -> None:
    pass


class Supervisor(Generic[S]):
    """Keeps one engine running, or one front: `make` makes each new one.

    It is lost when its reports end, when no report arrives for `silence_seconds`, or when a step takes too long. The
    next one is then started after a pause, which grows with every one that ran for a short time only. After
    `restart_limit` failed starts in a row the supervisor gives up.

    The callbacks run on the event loop and must not block. `on_ready(engine, info)` is called when it is ready; it may
    raise StartupError to reject it. `on_lost(seconds)` is called when it is lost, and again when a start has failed:
    the next one is expected in `seconds`, or never if they are infinite. `restarts` counts the restarts after losses.

    `drain` takes it out of service, as does a heartbeat that says so: `on_draining` is called, and it is stopped when
    it has no work left.
    """

    def __init__(
        self,
        make: Callable[[], S],
        settings: SupervisionSettings,
        *,
        on_ready: Callable[[S, ModelInfo], None] = _ignore,
        on_lost: Callable[[float], None] = _ignore,
        on_draining: Callable[[], None] = _ignore,
    ) -> None:
        self.leaves = False  # it was asked to leave service, and has not been started again
        self.restarts = Restarts()
        self.given_up = False
        self._make = make
        self._settings = settings
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._on_draining = on_draining
        self._drained = False
        self._starts_again = asyncio.Event()
        self._current: S | None = None
        self._on_cpu = False
        self._task: asyncio.Task[None] | None = None
        self._has_run = False
        self._short_runs = 0  # runs in a row
        self._failed_starts = 0  # starts in a row
        self._idle_heartbeats = 0  # heartbeats in a row, of an engine that leaves

    async def start(self) -> None:
        """Start the first engine, then supervise it in the background. Raises StartupError if it does not start."""
        await self._start()
        self.start_in_background()

    def start_in_background(self) -> None:
        """Start without waiting for the first engine, whose start is then retried like any other."""
        self._task = keep_running(self._supervise, "the supervision of an engine")

    def drain(self, *, restart: bool) -> None:
        """Take the engine out of service when it has no work left; with `restart`, the next one is started then."""
        if restart:
            self._starts_again.set()
        if not self.leaves:
            self.leaves = True
            self._on_draining()

    def resume(self) -> None:
        """Start the next engine after a `drain`, when that has ended. Does nothing for one that is in service."""
        if self.leaves:
            self._starts_again.set()

    async def close(self, *, force: bool = False) -> None:
        """Stop the engine and its supervision; see `Supervised.close`. No callback is called."""
        await cancel_and_wait(self._task)
        if self._current:
            await self._current.close(force=force)

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        while self._current or await self._restart():
            assert self._current
            started = loop.time()
            reason = await self._watch(self._current)
            if loop.time() - started >= STABLE_SECONDS:
                self._short_runs = 0
            self._drained = reason == DRAINED
            logger.log(logging.INFO if self._drained else logging.ERROR, LOST, self._current.name, reason)
            try:
                stays_out = self.leaves and not self._starts_again.is_set()
                self._expect(math.inf if stays_out else self._pause + self.restarts.start_seconds)
            finally:
                await self._discard(force=not self._drained)
            if self.leaves:
                await self._starts_again.wait()
                self._expect(self.restarts.start_seconds)
                self._short_runs = 0

    async def _start(self) -> None:
        began = asyncio.get_running_loop().time()
        self._current = current = self._make()
        try:
            info = await current.start()
            self.restarts.started(asyncio.get_running_loop().time() - began)
            self._on_cpu = info.device == "cpu"
            counted = self._has_run and not self._drained
            self.restarts.count += counted  # `on_ready` passes it on, so this comes first
            self.leaves = self._drained = False
            self._starts_again.clear()
            try:
                self._on_ready(current, info)
            except StartupError:
                self.restarts.count -= counted
                raise
            self._has_run = True
        except BaseException:
            await self._discard()
            raise

    async def _discard(self, *, force: bool = True) -> None:
        """Close the current one. An error is logged and does not prevent the start of the next one."""
        assert self._current
        try:
            await self._current.close(force=force)
        except Exception:
            logger.exception("%s could not be closed; what is left of it may keep its device", self._current.name)
        self._current = None

    async def _restart(self) -> bool:
        """Start the next engine, with as many attempts as the settings allow. Returns False after giving up."""
        limit = self._settings.restart_limit
        while True:
            await asyncio.sleep(self._pause)
            self._short_runs += 1
            try:
                await self._start()
            except Exception as error:
                self._failed_starts += 1
                reason = str(error) if isinstance(error, StartupError) else f"{type(error).__name__}: {error}"
                logger.error("an engine did not start again, %d of %d: %s", self._failed_starts, limit, reason)
                if self._failed_starts >= limit:
                    self.given_up = True
                    self._expect(math.inf)
                    return False
                self._expect(self._pause + self.restarts.start_seconds)
            else:
                self._failed_starts = 0
                return True

    @property
    def _pause(self) -> float:
        """The seconds before the next start."""
        pause = FIRST_PAUSE_SECONDS * PAUSE_FACTOR ** min(self._short_runs, 10)
        return min(pause, self._settings.restart_seconds)

    def _expect(self, seconds: float) -> None:
        self.restarts.expect(seconds)
        self._on_lost(seconds)

    async def _watch(self, engine: S) -> str:
        """Read the reports until the engine or front is lost; returns the reason."""
        watchdog = _Watchdog(self._settings, CPU_STEP_FACTOR if self._on_cpu else GPU_STEP_FACTOR)
        self._idle_heartbeats = 0
        reading = asyncio.create_task(self._read(engine, watchdog))
        try:
            while not reading.done() and not watchdog.expired and self._idle_heartbeats < IDLE_HEARTBEATS:
                await asyncio.wait([reading], timeout=TICK_SECONDS)
                watchdog.tick()
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        if watchdog.expired:
            return watchdog.expired
        if self._idle_heartbeats >= IDLE_HEARTBEATS:
            return DRAINED
        if not reading.cancelled() and (error := reading.exception()):
            logger.error("the reports of %s cannot be read", engine.name, exc_info=error)
            return "its reports cannot be read"
        return "it has ended"

    async def _read(self, engine: S, watchdog: _Watchdog) -> None:
        async with contextlib.aclosing(engine.reports()) as received:
            async for reports in received:
                watchdog.on_report(reports[0])
                if watchdog.expired:
                    return
                if isinstance(heartbeat := reports[0], Heartbeat):
                    if heartbeat.leaves and not self.leaves:
                        self.drain(restart=True)
                    elif self.leaves:
                        self._idle_heartbeats = 0 if heartbeat.work else self._idle_heartbeats + 1


class _Watchdog:
    """Expires when an engine has been silent, or at one step, for too long; `expired` is the reason, empty until then.

    Silence is counted in ticks of our own event loop. So an engine is not blamed when the event loop itself is blocked.
    """

    def __init__(self, settings: SupervisionSettings, step_factor: float) -> None:
        self.expired = ""
        self._settings = settings
        self._step_factor = step_factor
        self._silent_ticks = 0

    def on_report(self, report: Report) -> None:
        """A report has arrived. A heartbeat tells how long the step has lasted."""
        self._silent_ticks = 0
        if isinstance(report, Heartbeat):
            limit = self._settings.step_seconds or max(MIN_STEP_SECONDS, self._step_factor * report.slowest_step)
            if report.busy_seconds > limit:
                self.expired = f"a step has lasted {report.busy_seconds:.1f} s and the limit is {limit:.1f} s"

    def tick(self) -> None:
        self._silent_ticks += 1
        if self._silent_ticks * TICK_SECONDS >= self._settings.silence_seconds:
            self.expired = f"it has been silent for {self._settings.silence_seconds:g} s"
