"""Keeps an engine in its place: starts it, watches its pulse, and has another one follow when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.ipc.messages import Beat, Report
from voxcpm_grpc.pool.background import cancel_and_wait, keep_running
from voxcpm_grpc.pool.handle import Handle, Launch
from voxcpm_grpc.request import ModelInfo
from voxcpm_grpc.settings.schema import SupervisionSettings

logger = logging.getLogger(__name__)

TICK_SECONDS = 0.25
LEAST_STEP_SECONDS = 1.5  # a step may take that long, however short its like were before
# Or that many times the longest step of the warm-up. What else a host runs slows its CPU down much more than a GPU, and
# a GPU that hangs shall be noticed within 2 s also where steps take 0.3 s.
CPU_STEP_FACTOR, GPU_STEP_FACTOR = 20, 5
FIRST_PAUSE_SECONDS = 0.25
PAUSE_FACTOR = 4
STABLE_SECONDS = 60.0  # who lived that long is not to blame for what killed its predecessors


class Tenant(Protocol):
    """Who uses the engine of a place. Told on the event loop; must not wait, nor raise but where it says so."""

    def came(self, handle: Handle, info: ModelInfo) -> None:
        """An engine is ready for commands. Raises StartupError to refuse it, as one of another model."""
        ...

    def said(self, reports: list[Report]) -> None:
        """It reported; beats are left out."""
        ...

    def went(self, why: str) -> None:
        """It is lost: nothing more comes from it."""
        ...

    def gave_up(self, why: str) -> None:
        """No engine will follow."""
        ...


class Supervisor:
    """One place and its engines, one after the other.

    An engine is lost when its reports end, when it is silent for `silence_seconds`, or when one of its steps takes
    too long. Then the next one is launched, after a pause that grows with every life that was short; after
    `restart_limit` starts that failed in a row the place is given up.
    """

    def __init__(self, launch: Launch, tenant: Tenant, settings: SupervisionSettings) -> None:
        self.restarts = 0
        self._launch = launch
        self._tenant = tenant
        self._settings = settings
        self._handle: Handle | None = None
        self._on_cpu = False
        self._keeping: asyncio.Task[None] | None = None
        self._short_lives = 0  # in a row
        self._failed_starts = 0  # in a row

    async def start(self) -> None:
        """Bring the first engine up and watch it from then on. Raises StartupError if it cannot be."""
        await self._start()
        self.begin()

    def begin(self) -> None:
        """As `start`, without waiting for the first engine, which may fail as its successors may."""
        self._keeping = keep_running(self._keep, "the watch over an engine")

    async def close(self, *, force: bool = False) -> None:
        """Stop the engine and the watch over it; see `Handle.close`. The tenant is not told."""
        await cancel_and_wait(self._keeping)
        if self._handle:
            await self._handle.close(force=force)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while self._handle or await self._replace():
            assert self._handle
            born = loop.time()
            why = await self._watch(self._handle)
            if loop.time() - born >= STABLE_SECONDS:
                self._short_lives = 0
            logger.error("%s is lost: %s", self._handle.name, why)
            try:
                self._tenant.went(why)
            finally:
                await self._discard()

    async def _start(self) -> None:
        self._handle = handle = self._launch()
        try:
            info = await handle.start()
            self._on_cpu = info.device == "cpu"
            self._tenant.came(handle, info)
        except BaseException:
            await self._discard()
            raise

    async def _discard(self) -> None:
        """Close the present engine. One that cannot be closed keeps no other from following it."""
        assert self._handle
        try:
            await self._handle.close(force=True)
        except Exception:
            logger.exception("%s could not be closed; what is left of it may keep its device", self._handle.name)
        self._handle = None

    async def _replace(self) -> bool:
        """Whether a new engine is there. Tries until one is, or the place is given up."""
        limit = self._settings.restart_limit
        while True:
            pause = FIRST_PAUSE_SECONDS * PAUSE_FACTOR ** min(self._short_lives, 10)
            await asyncio.sleep(min(pause, self._settings.restart_seconds))
            self._short_lives += 1
            try:
                await self._start()
            except Exception as error:
                self._failed_starts += 1
                why = str(error) if isinstance(error, StartupError) else f"{type(error).__name__}: {error}"
                logger.error("an engine did not start again, %d of %d: %s", self._failed_starts, limit, why)
                if self._failed_starts >= limit:
                    self._tenant.gave_up(why)
                    return False
            else:
                self._failed_starts = 0
                self.restarts += 1
                return True

    async def _watch(self, handle: Handle) -> str:
        """Hand over what the engine says until it is lost; returns why."""
        patience = _Patience(self._settings, CPU_STEP_FACTOR if self._on_cpu else GPU_STEP_FACTOR)
        reading = asyncio.create_task(self._read(handle, patience))
        try:
            while not reading.done() and not patience.fault:
                await asyncio.wait([reading], timeout=TICK_SECONDS)
                patience.tick()
        finally:
            reading.cancel()
            await asyncio.wait([reading])
        if patience.fault:
            return patience.fault
        if not reading.cancelled() and (error := reading.exception()):
            logger.error("the reports of %s cannot be read", handle.name, exc_info=error)
            return "its reports cannot be read"
        return "it has ended"

    async def _read(self, handle: Handle, patience: _Patience) -> None:
        async with contextlib.aclosing(handle.reports()) as batches:
            async for reports in batches:
                patience.heard()
                if isinstance(reports[0], Beat):
                    patience.felt(reports[0])
                    if patience.fault:
                        return
                else:
                    self._tenant.said(reports)


class _Patience:
    """When silence or a step has lasted too long.

    Silence is counted in turns of our own event loop: when it is held up itself, it does not blame an engine.
    """

    def __init__(self, settings: SupervisionSettings, step_factor: float) -> None:
        self.fault = ""
        self._settings = settings
        self._step_factor = step_factor
        self._silent_ticks = 0

    def heard(self) -> None:
        self._silent_ticks = 0

    def felt(self, beat: Beat) -> None:
        limit = self._settings.step_seconds or max(LEAST_STEP_SECONDS, self._step_factor * beat.slowest_step)
        if beat.busy_seconds > limit:
            self.fault = f"a step has lasted {beat.busy_seconds:.1f} s and the limit is {limit:.1f} s"

    def tick(self) -> None:
        self._silent_ticks += 1
        if self._silent_ticks * TICK_SECONDS >= self._settings.silence_seconds:
            self.fault = f"it has been silent for {self._settings.silence_seconds:g} s"
