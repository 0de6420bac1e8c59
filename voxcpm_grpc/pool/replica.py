"""A replica: one engine at a time, and the calls that it works on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import uuid
import weakref
from collections.abc import Callable, Collection
from itertools import count

from voxcpm_grpc.aio.tasks import keep_running
from voxcpm_grpc.errors import Internal, Reason, Unavailable
from voxcpm_grpc.events import Admitted, AudioChunk, CodecChunk, Finished
from voxcpm_grpc.ipc.messages import (
    NO_LOAD,
    Allow,
    Append,
    AskStats,
    Begin,
    CallEvent,
    Cancel,
    EngineStats,
    ExternalLoad,
    Failed,
    Keep,
    NeedsText,
    Preload,
    Report,
    Suspected,
    Try,
    Trying,
)
from voxcpm_grpc.logs import LogLine
from voxcpm_grpc.pool.balancer import Room
from voxcpm_grpc.pool.directory import Connection
from voxcpm_grpc.pool.engine_call import Departure, EngineCall
from voxcpm_grpc.pool.estimates import Capacity, Restarts, StepTime, Work, seconds_until_slot
from voxcpm_grpc.request import Adapter, ModelInfo

logger = logging.getLogger(__name__)

KNOWN_BATCHES = 4  # an engine that has sent so many batches of reports has handled a command that was sent before


class Replica:
    """Routes the reports of its engine to the calls. Belongs to one event loop.

    Callbacks: `on_change(replica)` follows every change of `ready` and of `given_up`, and `on_ready(replica)` comes
    before it when an engine takes commands. `reassign(replica, calls, departure)` receives the calls of an engine that
    was lost or leaves service, and calls that the engine sent away. `restarts` counts and expects the restarts of the
    engine.

    A call with which another engine has ended is tried: the engine does no other work of this kind at the same time.
    """

    def __init__(
        self,
        name: str,
        *,
        on_ready: Callable[[Replica], None],
        on_change: Callable[[Replica], None],
        reassign: Callable[[Replica, list[EngineCall], Departure], None],
    ) -> None:
        self.name = name
        self.draining = False  # the replica finishes its calls and gets no new ones, for good
        self.out_of_service = False  # the same holds until an engine is ready again
        self.restarts = Restarts()
        self._calls: dict[str, weakref.ref[EngineCall]] = {}  # a call that its reader drops is cancelled
        self._batches = 0  # batches of reports
        self._since: dict[str, int] = {}  # so many had arrived before each call
        self._connection: Connection | None = None
        self._is_ready = False
        self._reading: asyncio.Task[None] | None = None
        self.info: ModelInfo | None = None  # the latest engine runs this model; None before the first one is ready
        self._external_load = NO_LOAD
        self._stats: EngineStats | None = None
        self._stats_at = 0.0  # the statistics arrived at this time of the event loop
        self._answers: dict[int, asyncio.Future[None]] = {}  # the keys are the numbers of AskStats
        self._numbers = count(1)
        self._step_time = StepTime()
        self._capacity = Capacity(0.0)
        self._on_engine_ready = on_ready
        self._on_change = on_change
        self._reassign = reassign
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def ready(self) -> bool:
        """True if an engine takes calls."""
        return self._is_ready and not (self.draining or self.out_of_service)

    @property
    def given_up(self) -> bool:
        """True if there is no engine, and none will be started again."""
        return not (self._is_ready or self.out_of_service) and math.isinf(self.restarts.seconds_left)

    @property
    def drained(self) -> bool:
        """True if its engine has left service and has ended."""
        return self.out_of_service and not self._is_ready

    @property
    def calls(self) -> list[EngineCall]:
        """The calls in progress."""
        return [call for reference in self._calls.values() if (call := reference())]

    @property
    def adapters(self) -> Collection[str]:
        """The fingerprints of the LoRA adapters that the engine has read; none while there is no engine."""
        return () if self.stats is None else self.stats.adapters

    @property
    def stats(self) -> EngineStats | None:
        """The latest statistics of the engine; None before the first ones, and while there is no engine."""
        return self._stats if self._is_ready else None

    @property
    def stats_age(self) -> float:
        """Seconds since `stats` arrived."""
        return asyncio.get_running_loop().time() - self._stats_at

    async def refresh_stats(self, seconds: float) -> None:
        """Ask the engine for `stats` of this moment, and wait up to `seconds` for them.

        The engine answers after its current step, and after all commands that were sent before.
        """
        if self._connection is None:
            return
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            self._connection.post(AskStats(number))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await answer
        finally:
            del self._answers[number]

    def has_queue(self, *, is_batch: bool = False) -> bool:
        """True if more streams are here than there are slots.

        Paused streams do not count, such as those that wait for text, and, unless `is_batch` is true, batch streams.
        """
        return self.info is not None and self._count(with_batch=is_batch).streams > self.info.max_slots

    def load(self, *, is_batch: bool = False) -> tuple[Room, float]:
        """The room for a new stream, and the outstanding steps. Both include the work for other fronts.

        Paused streams do not count: they need no steps, and give their slots to others. So do batch streams, if the new
        stream is interactive.
        """
        work = self._count(with_batch=True)
        if self.info is None or work.streams < self.info.max_slots:
            return Room.SLOT, work.steps
        if not is_batch and self._count(with_batch=False).streams < self.info.max_slots:
            return Room.BATCH, work.steps
        limit = self.info.max_queue
        return Room.QUEUE if limit is None or self.queued(is_batch=is_batch) < limit else Room.NONE, work.steps

    @property
    def running(self) -> int:
        """Streams that can run and have a slot, or a free slot to take, those of other fronts included."""
        return self._count(with_batch=True).streams - self.queued(is_batch=True)

    def queued(self, *, is_batch: bool = False) -> int:
        """Streams that wait for their first slot while no slot is free, those of other fronts included.

        Batch streams count only if `is_batch` is true.
        """
        work = self._count(with_batch=is_batch)
        free = max(0, self.info.max_slots - work.streams + work.waiting) if self.info else 0
        return max(0, work.waiting - free)

    def queue_seconds(self, *, is_batch: bool = False) -> float | None:
        """The estimated wait of a new stream for its slot; None while nothing is known about the time of streams."""
        seconds, external = self._step_time.seconds, self._external_load
        if self.info is None or seconds is None:
            return None
        streams = external.streams - (0 if is_batch else external.batch)
        others_wait = external.waiting - (0 if is_batch else external.batch_waiting)
        each = seconds * external.steps / max(1, external.streams)
        running, waiting = [each] * (streams - others_wait), [each] * others_wait
        for call in self.calls:
            if call.is_stream and not call.paused and (is_batch or not call.is_batch):
                (running if call.has_slot else waiting).append(seconds * call.steps_left)
        most = math.inf if is_batch else self._capacity.seconds_to_lead(len(running) + len(waiting) + 1)
        running, waiting = ([min(left, most) for left in group] for group in (running, waiting))
        return seconds_until_slot(running, waiting, self.info.max_slots)

    def _count(self, *, with_batch: bool) -> Work:
        """The work of the engine for all fronts. The steps are always those of all streams."""
        others = self._external_load
        streams, waiting, steps = others.streams, others.waiting, others.steps
        if not with_batch:
            streams, waiting = streams - others.batch, waiting - others.batch_waiting
        for reference in self._calls.values():
            if (call := reference()) is None or call.paused:
                continue
            steps += call.steps_left
            if call.is_stream and (with_batch or not call.is_batch):
                streams += 1
                waiting += not call.has_slot
        return Work(streams, waiting, steps)

    def start(self, id: str, call: EngineCall) -> None:
        """Start a call on the engine. The id must never have been used here."""
        assert self._connection is not None
        self._calls[id] = weakref.ref(call)
        self._since[id] = self._batches
        self._idle.clear()
        try:
            command = call.start(id, self.name.removeprefix("engine "), self._post)
            if call.deaths and isinstance(command, Suspected):
                command = Try(command)
            self._connection.post(command)
        except Exception:
            logger.exception(LogLine("a request cannot be sent", request=id, request_id=call.log_id, engine=self.name))
            self._remove(id)
            call.fail(Internal())

    def post(self, command: Keep) -> None:
        """Send a command that is no call. It is dropped while there is no engine."""
        if self._connection is not None:
            self._connection.post(command)

    async def preload(self, adapter: Adapter) -> None:
        """Let the engine read an adapter. Raises its error, or Unavailable if it is lost meanwhile."""
        call: EngineCall[CodecChunk] = EngineCall(
            "preload", lambda call: Preload(call.id, adapter), whole=True, moves=False
        )
        self.start(f"preload.{uuid.uuid4().hex}", call)
        async with contextlib.aclosing(call) as pieces:
            async for _ in pieces:
                pass

    async def idle(self) -> None:
        """Wait until no call is in progress."""
        await self._idle.wait()

    def move_calls(self) -> None:
        """Let other engines continue the streams."""
        moving = [call for call in self.calls if call.is_stream and call.can_continue]
        for call in moving:
            self._post(Cancel(call.id))
            call.leave()
        self._reassign(self, moving, Departure.MOVED)

    def on_ready(self, connection: Connection, info: ModelInfo, restarts: int) -> None:
        """An engine takes commands, the one after `restarts` others."""
        self._lose()  # the last reports of the one before may still be expected
        self._connection, self.info, self._is_ready = connection, info, True
        self.out_of_service = False
        self.restarts.count = restarts
        self._capacity = Capacity(info.step_seconds)
        self._reading = keep_running(lambda: self._read(connection), f"reading the reports of {self.name}")
        self._on_engine_ready(self)
        self._on_change(self)

    def on_lost(self, seconds: float) -> None:
        """There is no engine yet, or no longer. The next one is expected in `seconds`; none if they are infinite.

        The calls of a lost engine end after its last reports.
        """
        self.restarts.expect(seconds)
        self._is_ready = False
        if self._connection is not None:
            self._connection.end()
        self._on_change(self)

    def close(self) -> None:
        """Leave the engine for good. Its calls end as if the engine were lost."""
        self.draining = True
        self._is_ready = False
        self._on_change(self)
        self._lose(Departure.MOVED)

    def _post(self, command: Allow | Append | Cancel) -> None:
        """Send a command about a call, unless the call has ended."""
        if command.id not in self._calls:
            return
        if isinstance(command, Cancel):
            self._remove(command.id)
        if self._connection is not None:
            self._connection.post(command)

    async def _read(self, connection: Connection) -> None:
        """Handle the reports of an engine until it is lost."""
        try:
            async with contextlib.aclosing(connection.reports()) as received:
                async for reports in received:
                    self._batches += 1
                    # Those of streams without audio come first, because their users wait for it.
                    for report in sorted(reports, key=self._is_less_urgent):
                        self._route(report)
        except Exception:
            self._give_calls_back()
            raise
        self._lose()

    def _give_calls_back(self) -> None:
        """Cancel all calls on the engine, because reports about them are lost; each is retried or ends."""
        calls = self.calls
        for id in list(self._calls):
            self._post(Cancel(id))
        for call in calls:
            call.leave()
        self._reassign(self, calls, Departure.MOVED)

    def _lose(self, departure: Departure = Departure.LOST) -> None:
        """End the connection to an engine, with its calls. Does nothing without one."""
        if self._connection is None:
            return
        if self._reading is not None and self._reading is not asyncio.current_task():
            self._reading.cancel()
        self._connection.close()
        self._connection = None
        self._external_load = NO_LOAD
        self._stats = None
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result(None)
        self._step_time = StepTime()
        calls = self.calls
        for call in calls:
            call.leave(died=departure is Departure.LOST and not self._is_queued(call))
        self._calls.clear()
        self._since.clear()
        self._idle.set()
        self._reassign(self, calls, departure)

    def _is_queued(self, call: EngineCall) -> bool:
        """True for a stream that the engine has known for a while, and which has not had its slot."""
        return call.is_stream and not call.has_slot and self._batches - self._since[call.id] >= KNOWN_BATCHES

    def _is_less_urgent(self, report: Report) -> bool:
        if not (isinstance(report, CallEvent) and isinstance(report.body, Admitted | AudioChunk)):
            return True
        call = self._calls.get(report.id, _no_call)()
        return call is None or call.has_output

    def _route(self, report: Report) -> None:
        """Deliver a report to its call. Reports about a call that was cancelled are dropped."""
        match report:
            case CallEvent(id, body):
                if call := self._calls.get(id, _no_call)():
                    call.deliver(body)
                    if isinstance(body, Finished) or (isinstance(body, CodecChunk) and body.last):
                        self._remove(id)
            case Failed(id):
                if call := self._calls.get(id, _no_call)():
                    self._remove(id)
                    error = report.error()
                    if error.reason is Reason.LORA_LOST:
                        call.unable.add(self)
                    if error.reason is Reason.LORA_LOST or isinstance(error, Unavailable):
                        call.leave(died=isinstance(error, Unavailable))
                        self._reassign(self, [call], Departure.REFUSED)
                    else:
                        call.fail(error)
            case NeedsText(id, needs):
                if call := self._calls.get(id, _no_call)():
                    call.on_needs_text(needs)
            case Trying(id):
                if (call := self._calls.get(id, _no_call)()) and self._connection is not None:
                    call.on_trial = True
                    self._connection.post(Begin(id))
            case ExternalLoad():
                self._external_load = report
            case EngineStats():
                if self._stats is not None:
                    self._capacity.observe(self._stats, report)
                self._stats, self._stats_at = report, asyncio.get_running_loop().time()
                if (answer := self._answers.get(report.answers)) and not answer.done():
                    answer.set_result(None)
            case _:
                logger.error("%s sent %s, which is valid only during its start", self.name, type(report).__name__)

    def _remove(self, id: str) -> None:
        self._since.pop(id, None)
        call = self._calls.pop(id, _no_call)()
        # The front does not know for how long a batch stream had no slot, and not exactly when another one had no text.
        known = call is not None and call.is_stream and not (call.is_batch or call.streams_text)
        if call is not None and known and (seconds := call.slot_seconds) is not None:
            self._step_time.observe(seconds, call.work_here)
        if not self._calls:
            self._idle.set()


def _no_call() -> None:
    """Stands for the reference to a call that is not in progress."""
