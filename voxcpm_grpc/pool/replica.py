"""A place in the pool: one engine at a time, and the jobs that it works on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from voxcpm_grpc.errors import Internal, Unavailable
from voxcpm_grpc.ipc.messages import (
    CallEvent,
    Cancel,
    Command,
    ExternalLoad,
    Failed,
    Report,
)
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.handle import Handle, Launch
from voxcpm_grpc.pool.supervisor import Supervisor
from voxcpm_grpc.request import Admitted, AudioChunk, CodecChunk, Finished, ModelInfo
from voxcpm_grpc.settings.schema import SupervisionSettings

logger = logging.getLogger(__name__)

NOTHING = ExternalLoad(streams=0, steps=0.0)


class Replica:
    """Routes what its engine says to the jobs it is about; the supervisor's tenant. Belongs to one event loop.

    Calls back: `check(info)` may refuse an engine with StartupError, `on_change()` follows every change of `alive` and
    of `given_up`, `on_orphans(jobs)` takes over jobs whose engine was lost or said that another one should try.
    """

    def __init__(
        self,
        launch: Launch,
        settings: SupervisionSettings,
        *,
        check: Callable[[ModelInfo], None],
        on_change: Callable[[Replica], None],
        on_orphans: Callable[[Replica, list[EngineCall]], None],
    ) -> None:
        self.name = ""
        self.jobs: dict[str, EngineCall] = {}
        self.given_up = False
        self.leaving = False  # may finish what it does, and is chosen no more
        self.loop = asyncio.get_running_loop()
        self.supervisor = Supervisor(launch, self, settings)
        self._handle: Handle | None = None
        self._info: ModelInfo | None = None
        self._others = NOTHING
        self._check = check
        self._on_change = on_change
        self._on_orphans = on_orphans
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def alive(self) -> bool:
        """Whether an engine is here to take jobs."""
        return self._handle is not None and not self.leaving

    @property
    def full(self) -> bool:
        """Whether one more stream would wait for a slot."""
        streams = sum(job.is_stream for job in self.jobs.values())
        return self._info is not None and streams + self._others.streams >= self._info.max_slots

    @property
    def work(self) -> float:
        """Steps outstanding, those that other fronts ask of the engine included."""
        return self._others.steps + sum(job.left for job in self.jobs.values())

    def give(self, id: str, job: EngineCall) -> None:
        """Set the engine to a job, under an id that no job here had before."""
        assert self._handle is not None
        self.jobs[id] = job
        self._idle.clear()
        try:
            self._handle.post(job.enter(self, id))
        except Exception:
            logger.exception("request %s cannot be sent to %s", id, self.name)
            self._forget(id)
            job.fail(Internal())

    def post(self, id: str, command: Command) -> None:
        """Say something about a job, unless it has ended."""
        if id in self.jobs and self._handle is not None:
            self._handle.post(command)

    def cancel(self, id: str) -> None:
        if self._forget(id) and self._handle is not None:
            self._handle.post(Cancel(id))

    async def idle(self) -> None:
        """Returns when nothing is under way here."""
        await self._idle.wait()

    async def close(self) -> None:
        """Stop the engine for good; what is under way ends as if it were lost."""
        self.leaving = True
        await self.supervisor.close()
        if self._handle is not None:
            self.went("it was closed")

    # ---- told by the supervisor

    def came(self, handle: Handle, info: ModelInfo) -> None:
        self._check(info)
        self.name = handle.name
        self._handle, self._info = handle, info
        self._on_change(self)

    def said(self, reports: list[Report]) -> None:
        """Route the reports of a step, those of streams without audio so far first: their callers wait for it."""
        for report in sorted(reports, key=self._is_late):
            self._route(report)

    def went(self, why: str) -> None:
        self._handle = None
        self._others = NOTHING
        orphans, self.jobs = list(self.jobs.values()), {}
        self._idle.set()
        self._on_change(self)
        self._on_orphans(self, orphans)

    def gave_up(self, why: str) -> None:
        self.given_up = True
        self._on_change(self)

    # ----

    def _is_late(self, report: Report) -> bool:
        if not (isinstance(report, CallEvent) and isinstance(report.body, Admitted | AudioChunk)):
            return True
        job = self.jobs.get(report.id)
        return job is None or job.spoke

    def _route(self, report: Report) -> None:
        """To the job it is about. A job that is not there was cancelled meanwhile."""
        match report:
            case CallEvent(id, Finished() | CodecChunk(last=True) as body):
                if job := self._forget(id):
                    job.deliver(body)
            case CallEvent(id, body):
                if job := self.jobs.get(id):
                    job.deliver(body)
            case Failed(id):
                if job := self._forget(id):
                    error = report.error()
                    if isinstance(error, Unavailable):
                        self._on_orphans(self, [job])
                    else:
                        job.fail(error)
            case ExternalLoad():
                self._others = report
            case _:
                logger.error("%s said %s, which comes at the start only", self.name, type(report).__name__)

    def _forget(self, id: str) -> EngineCall | None:
        job = self.jobs.pop(id, None)
        if not self.jobs:
            self._idle.set()
        return job
