"""The dispatcher: hands commands to one engine, and its results to the fronts that asked for them."""

from __future__ import annotations

import logging
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from time import monotonic

import numpy as np
from msgspec.structs import replace

from voxcpm_grpc.errors import Internal, TooLong, VoxCPMError, code_of
from voxcpm_grpc.events import Admitted, AudioChunk, CodecChunk, Event, Finished
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc.messages import (
    NO_LOAD,
    AdapterList,
    Allow,
    Append,
    AskStats,
    Begin,
    CallEvent,
    Cancel,
    Check,
    Command,
    Decode,
    Detach,
    Encode,
    EngineDraining,
    EngineLost,
    EngineReady,
    EngineStarting,
    EngineStats,
    ExternalLoad,
    Failed,
    Keep,
    NeedsText,
    Preload,
    Report,
    Stop,
    Submit,
    Try,
    Trying,
)
from voxcpm_grpc.ipc.sockets import OWNER
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.request import Adapter
from voxcpm_grpc.worker.engine_like import EngineLike
from voxcpm_grpc.worker.gathering import Gathering
from voxcpm_grpc.worker.heartbeat import StepTimer
from voxcpm_grpc.worker.trials import Trials

logger = logging.getLogger(__name__)

LOG_SECONDS = 1.0  # seconds between two debug lines about steps
LOAD_SECONDS = 0.1  # seconds between two reports of the external load
STATS_SECONDS = 1.0  # seconds between two reports of the statistics


@dataclass(slots=True)
class _Task:
    """A request or a codec job of a front."""

    front: str
    log_id: str = ""
    is_batch: bool = False
    steps_left: float = 0.0  # steps, estimated
    admitted: bool = False
    needs_text: bool | None = False  # its front knows this; None: it knows nothing so far
    gathering: Gathering | None = None  # None: it is no stream


def _ignore() -> None:
    pass


class Dispatcher:
    """Runs one engine for any number of fronts. It knows a front from its first command until the owner detaches it.

    The loop of the process calls `run_once` with the messages that have arrived, and sends the reports that it returns.
    It may wait for messages while it is not `busy`; another thread calls `wake` when it must not wait any longer.
    """

    def __init__(self, engine: EngineLike, timer: StepTimer, *, wake: Callable[[], None] = _ignore) -> None:
        self.stopped = False  # Stop sets it
        self._engine = engine
        engine.adapters.wake = wake
        self._kept: dict[str, tuple[Adapter, ...]] = {}  # each front has its own
        self._timer = timer
        self._trials = Trials()
        self._tasks: dict[str, _Task] = {}
        self._fronts: set[str] = set()
        self._detached: set[str] = set()  # their messages may still be on the way
        self._load_reported = 0.0  # the loads were computed last at this time
        self._loads: dict[str, ExternalLoad] = {}  # each front has received this one last
        self._log_stats = logger.isEnabledFor(logging.DEBUG)
        self._logged = monotonic()
        self._logged_steps = 0
        self._stats_reported = 0.0  # the statistics were reported last at this time
        self._stats: EngineStats | None = None  # these were reported last
        self._stats_asked: list[tuple[str, int]] = []  # each AskStats has its front and its number
        self._step_seconds = 0.0

    @property
    def busy(self) -> bool:
        return self._engine.busy

    def run_once(self, inbox: Iterable[tuple[str, bytes | memoryview]]) -> dict[str, list[Report]]:
        """Wait for the last step, handle each message, and run one step if there is work.

        Returns the reports for each front. `inbox` yields the name of a front and its encoded command; the first is
        taken after the wait. An error in a command or a request ends that request alone; errors that `collect` and
        `step` raise are raised here.
        """
        reports: defaultdict[str, list[Report]] = defaultdict(list)
        started = monotonic()
        with self._timer:
            self._engine.collect()
        self._step_seconds += monotonic() - started
        for front, data in inbox:
            with self._timer:
                self._receive(front, data, reports)
        with self._timer:
            if self._engine.busy:
                started = monotonic()
                for id, result in self._engine.step():
                    self._route(id, result, reports)
                self._step_seconds += monotonic() - started
        self._report_gathered(reports)
        if self._trials.waiting:
            self._trials.check(monotonic(), busy=self._engine.busy)
            if suspect := self._trials.announce():
                reports[suspect.front].append(Trying(suspect.id))
        self._timer.work = len(self._tasks) + self._trials.waiting
        self._publish_load(reports)
        if self._log_stats:
            self._log_steps()
        self._publish_stats(reports)
        return reports

    def _log_steps(self) -> None:
        """Log the steps since the last line, LOG_SECONDS after it at the earliest."""
        seconds = monotonic() - self._logged
        if seconds < LOG_SECONDS:
            return
        stats = self._engine.stats()
        if stats.steps != self._logged_steps:
            logger.debug(
                "steps=%d seconds=%.1f running=%d waiting=%d swapped=%d slots=%d/%d pages=%d/%d",
                stats.steps - self._logged_steps,
                seconds,
                stats.running,
                stats.waiting,
                stats.swapped,
                stats.slots_used,
                stats.slots_total,
                stats.pages_used,
                stats.pages_total,
            )
        self._logged, self._logged_steps = monotonic(), stats.steps

    def _receive(self, front: str, data: bytes | memoryview, reports: dict[str, list[Report]]) -> None:
        if front in self._detached:
            return  # its work would never be allowed more and never be cancelled
        if front != OWNER and front not in self._fronts:
            self._fronts.add(front)
            self._stats = None  # the front has not received them
        try:
            self._handle(front, encoding.decode_command(data), reports)
        except VoxCPMError as error:
            id, log_id = encoding.command_ids(data)
            # A context that is too long is shortened and sent again.
            level = logging.DEBUG if isinstance(error, TooLong) else logging.WARNING
            self._log(level, "refused", id, log_id, code=code_of(error))
            self._trials.over(id)
            reports[front].append(Failed.of(id, error))
        except Exception as error:
            id, log_id = encoding.command_ids(data)
            logger.error(LogLine("a command failed", request=id, request_id=log_id), exc_info=error)
            self._trials.drop(id)
            self._tasks.pop(id, None)
            self._engine.cancel(id)  # a request that failed halfway must not keep its slot
            reports[front].append(Failed.of(id, Internal()))

    def _handle(self, front: str, command: Command, reports: dict[str, list[Report]]) -> None:
        engine = self._engine
        match command:
            case Submit(request, limit, work, history):
                engine.add(request, limit, history)
                made = 0 if history is None else history.chunks
                self._tasks[request.id] = _Task(
                    front,
                    request.log_id,
                    is_batch=request.is_batch,
                    steps_left=work,
                    needs_text=None if request.open else False,
                    gathering=Gathering(request, limit - made, engine.info.step_seconds, monotonic()),
                )
                self._report_text(request.id, reports)
            case Check(request):
                engine.check(request)
                reports[front].append(CallEvent(request.id, CodecChunk(np.zeros(0, np.float32), last=True)))
                self._trials.over(request.id)
            case Allow(id, limit):
                if not self._trials.defer(id, command):
                    engine.allow(id, limit)
            case Append(id, text, last, work):
                if not self._trials.defer(id, command):
                    engine.append(id, text, last=last)
                    if task := self._tasks.get(id):
                        task.steps_left += work
                        if not task.admitted:
                            self._report_text(id, reports)
            case Cancel(id):
                self._trials.drop(id)
                self._tasks.pop(id, None)
                engine.cancel(id)
            case Try(suspected):
                self._trials.hold(front, suspected)
            case Begin(id):
                self._begin(front, id, reports)
            case Encode(id, waveform, role, log_id):
                engine.encode(id, waveform, role)
                self._tasks[id] = _Task(front, log_id)
            case Decode(id, content, log_id):
                engine.decode(id, content)
                self._tasks[id] = _Task(front, log_id)
            case AskStats(number):
                self._stats_asked.append((front, number))
            case Preload(id, adapter):
                engine.adapters.preload(id, adapter)
                self._tasks[id] = _Task(front)
                self._kept[front] = (*self._kept.get(front, ()), adapter)
                self._keep_all()
            case Keep(adapters):
                self._kept[front] = adapters
                self._keep_all()
            case Stop():
                self.stopped = True
            case Detach(detached):
                self._detach(detached)
            case EngineReady() | EngineStarting() | EngineDraining() | EngineLost() | AdapterList():
                logger.error("an engine received %s, which is for fronts", type(command).__name__)

    def _begin(self, front: str, id: str, reports: dict[str, list[Report]]) -> None:
        """Do work whose trial begins."""
        if suspect := self._trials.begin(id, monotonic()):
            for command in (suspect.command, *suspect.later):
                self._handle(front, command, reports)

    def _detach(self, front: str) -> None:
        self._detached.add(front)
        self._fronts.discard(front)
        self._loads.pop(front, None)
        for id in [id for id, task in self._tasks.items() if task.front == front]:
            del self._tasks[id]
            self._engine.cancel(id)
        self._trials.drop_front(front)
        self._kept.pop(front, None)
        self._keep_all()

    def _keep_all(self) -> None:
        """Let the engine keep the adapters of all fronts and no others."""
        self._engine.adapters.keep(chain.from_iterable(self._kept.values()))

    def _route(self, id: str, result: Event | CodecChunk | VoxCPMError, reports: dict[str, list[Report]]) -> None:
        task = self._tasks.get(id)
        if task is None:
            return  # it was cancelled
        if isinstance(result, Admitted):
            self._trials.admitted(id, monotonic())
        else:
            self._trials.over(id)
        match result:
            case Admitted():
                task.admitted = True
                self._log(logging.DEBUG, "admitted", id, task.log_id, queue_seconds=result.queue_seconds)
            case AudioChunk():
                task.steps_left = max(0.0, task.steps_left - 1)
            case Finished():
                del self._tasks[id]
                self._log(logging.DEBUG, "finished", id, task.log_id, steps=result.steps, reason=result.reason)
            case CodecChunk(last=True):
                del self._tasks[id]
                self._log(logging.DEBUG, "finished", id, task.log_id)
            case VoxCPMError():
                del self._tasks[id]
                self._log(logging.WARNING, "failed", id, task.log_id, code=code_of(result))
        passed: Sequence[Event | CodecChunk | VoxCPMError] = [result]
        if task.gathering is not None and not isinstance(result, CodecChunk):
            passed = task.gathering.add(result, monotonic())
        for one in passed:
            reports[task.front].append(Failed.of(id, one) if isinstance(one, VoxCPMError) else CallEvent(id, one))

    def _report_gathered(self, reports: dict[str, list[Report]]) -> None:
        """Report audio that has waited for long enough, or of which the engine makes no more for now."""
        now, busy = monotonic(), self._engine.busy
        for id, task in self._tasks.items():
            if task.gathering is None or task.gathering.due == math.inf:
                continue
            if not busy or task.gathering.due <= now or self._engine.paused(id):
                reports[task.front] += [CallEvent(id, chunk) for chunk in task.gathering.take()]

    def _report_text(self, id: str, reports: dict[str, list[Report]]) -> None:
        """Report whether a request waits for text, if its front does not know."""
        task, needs = self._tasks[id], self._engine.needs_text(id)
        if needs is not task.needs_text:
            task.needs_text = needs
            reports[task.front].append(NeedsText(id, needs))
        if needs:
            self._trials.over(id)

    def _log(self, level: int, event: str, id: str, log_id: str, **fields: str | int | float) -> None:
        if logger.isEnabledFor(level):
            logger.log(level, LogLine(event, request=id, request_id=log_id, **fields))

    def _publish_load(self, reports: dict[str, list[Report]]) -> None:
        """Report to each front which of its requests wait for text, and the work for the others, if it has changed.

        It is computed every `LOAD_SECONDS`, and whenever the engine becomes idle, because nothing else may follow then.
        """
        now = monotonic()
        if now - self._load_reported < LOAD_SECONDS and self._engine.busy:
            return
        self._load_reported = now
        for id in self._tasks:
            self._report_text(id, reports)
        active = [task for id, task in self._tasks.items() if task.gathering and not self._engine.paused(id)]
        for front in self._fronts:
            others = [task for task in active if task.front != front]
            batch = [task for task in others if task.is_batch]
            load = ExternalLoad(
                len(others),
                sum(task.steps_left for task in others),
                waiting=sum(not task.admitted for task in others),
                batch=len(batch),
                batch_waiting=sum(not task.admitted for task in batch),
            )
            if load != self._loads.get(front, NO_LOAD):
                self._loads[front] = load
                reports[front].append(load)

    def _publish_stats(self, reports: dict[str, list[Report]]) -> None:
        """Report the statistics every `STATS_SECONDS`, and whenever the engine becomes idle, if they have changed.

        A front that asks for them gets them at once, and all fronts do when adapters were read or freed.
        """
        now, adapters = monotonic(), self._engine.adapters.fingerprints
        has_others = self._stats is None or adapters != self._stats.adapters
        due = now - self._stats_reported >= STATS_SECONDS or not self._engine.busy or has_others
        if not (due or self._stats_asked):
            return
        found = EngineStats(self._engine.stats(), self._step_seconds, os.getpid(), adapters=adapters)
        for front, number in self._stats_asked:
            reports[front].append(replace(found, answers=number))
        self._stats_asked.clear()
        if not due:
            return
        self._stats_reported = now
        if self._stats is None or has_others or found.stats != self._stats.stats:
            self._stats = found
            for front in self._fronts:
                reports[front].append(found)
