"""What an engine's process does with commands and results, whatever carries them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

import numpy as np

from voxcpm_grpc.errors import Internal, VoxCPMError
from voxcpm_grpc.ipc import messages
from voxcpm_grpc.ipc.messages import (
    BEAT_SECONDS,
    Attach,
    Beat,
    CallEvent,
    Cancel,
    Command,
    Credit,
    Decode,
    Detach,
    Encode,
    EngineCame,
    EngineWent,
    ExternalLoad,
    Failed,
    Ready,
    Report,
    Stop,
    Submit,
)
from voxcpm_grpc.request import AudioChunk, CodecChunk, Event, Finished, ModelInfo, Request

logger = logging.getLogger(__name__)

TELL_SECONDS = 0.1  # between two words to the fronts about each other's work


class EngineLike(Protocol):
    """An Engine as the desk needs it.

    `busy` must not count streams that wait for credit, or the loop would spin. `collect` waits for the results of the
    last step; the next one returns them, once it has launched its own.
    """

    @property
    def info(self) -> ModelInfo: ...
    @property
    def busy(self) -> bool: ...
    def warm_up(self) -> float: ...
    def add(self, request: Request, credit: int) -> None: ...
    def grant(self, id: str, chunks: int) -> None: ...
    def cancel(self, id: str) -> None: ...
    def encode(self, id: str, waveform: np.ndarray, *, pad_left: bool) -> None: ...
    def decode(self, id: str, latents: np.ndarray) -> None: ...
    def collect(self) -> None: ...
    def step(self) -> list[tuple[str, Event | CodecChunk | VoxCPMError]]: ...


class Heartbeat:
    """How long the loop has been at its present step. Written by the loop, read by the thread that sends beats.

    Time in which that thread did not run either does not count: a process that is stopped as a whole, with its
    container perhaps, and goes on later has not been caught in a step.
    """

    def __init__(self) -> None:
        self.slowest_step = 0.0  # of the warm-up
        self._began: float | None = None
        self._felt: float | None = None  # when the step began that the last beat told of
        self._busy_seconds = 0.0
        self._beaten = monotonic()

    def __enter__(self) -> None:
        self._began = monotonic()

    def __exit__(self, *_: object) -> None:
        self._began = None

    def beat(self) -> Beat:
        began, now = self._began, monotonic()
        awake = min(now - self._beaten, 2 * BEAT_SECONDS)
        self._beaten = now
        if began is None:
            self._busy_seconds = 0.0
        elif began == self._felt:
            self._busy_seconds += awake
        else:
            self._busy_seconds = min(now - began, awake)
        self._felt = began
        return Beat(self._busy_seconds, self.slowest_step)


@dataclass(slots=True)
class _Task:
    """Something that an engine does for a front."""

    front: str
    left: float = 0.0  # of the steps that it was guessed to take
    is_stream: bool = False


class Dispatcher:
    """One engine, the fronts it works for, and who asked for what.

    A loop round it waits for letters unless the engine is `busy`, hands them to `round`, and sends what that returns.
    """

    def __init__(self, engine: EngineLike, pulse: Heartbeat) -> None:
        self.stopped = False  # somebody said Stop
        self._engine = engine
        self._pulse = pulse
        self._tasks: dict[str, _Task] = {}
        self._fronts: set[str] = set()  # that were attached
        self._errands: list[Attach | Detach] = []
        self._told = 0.0  # when the fronts heard of each other's work
        self._rested = True  # and whether there was none

    @property
    def busy(self) -> bool:
        return self._engine.busy

    def round(self, letters: Iterable[tuple[str, bytes | memoryview]]) -> dict[str, list[Report]]:
        """Wait for the step before, obey every letter, make one step if there is something to do, and sort by front
        what all this brought.

        A letter is the name of a front and the command it encoded; the first is asked for after the wait. Faults of a
        command or a request end that request alone; what `collect` and `step` raise, this raises.
        """
        reports: defaultdict[str, list[Report]] = defaultdict(list)
        with self._pulse:
            self._engine.collect()
        for front, data in letters:
            if Detach(front) in self._errands:
                continue  # it was read out just now; nobody would cancel what is begun for it
            with self._pulse:
                for whom, report in self._read(front, data):
                    reports[whom].append(report)
        with self._pulse:
            if self._engine.busy:
                for id, result in self._engine.step():
                    self._deliver(id, result, reports)
        if self._fronts:
            self._tell_work(reports)
        return reports

    def errands(self) -> list[Attach | Detach]:
        """What the loop has to see to before it sends: fronts that came or went."""
        errands, self._errands = self._errands, []
        return errands

    def _deliver(self, id: str, result: Event | CodecChunk | VoxCPMError, reports: dict[str, list[Report]]) -> None:
        task = self._tasks.get(id)
        if task is None:
            return  # it was cancelled
        match result:
            case AudioChunk():
                task.left = max(0.0, task.left - 1)
            case Finished() | CodecChunk(last=True) | VoxCPMError():
                del self._tasks[id]
        failed = isinstance(result, VoxCPMError)
        reports[task.front].append(Failed.of(id, result) if failed else CallEvent(id, result))

    def _tell_work(self, reports: dict[str, list[Report]]) -> None:
        """Let every front know what the others ask of this engine, now and then."""
        now, rests = monotonic(), not self._tasks
        if (rests and self._rested) or (now - self._told < TELL_SECONDS and not rests):
            return
        self._told, self._rested = now, rests
        for front in self._fronts:
            others = [task.left for task in self._tasks.values() if task.front != front and task.is_stream]
            reports[front].append(ExternalLoad(len(others), sum(others)))

    def _read(self, front: str, data: bytes | memoryview) -> Iterator[tuple[str, Report]]:
        """What is to be said at once, and to whom."""
        try:
            yield from self._obey(front, messages.decode_command(data))
        except Exception as error:
            yield front, self._refuse(messages.command_id(data), error)

    def _obey(self, front: str, command: Command) -> Iterator[tuple[str, Report]]:
        engine = self._engine
        match command:
            case Submit(request, credit, work):
                engine.add(request, credit)
                self._tasks[request.id] = _Task(front, work, is_stream=True)
            case Credit(id, chunks):
                engine.grant(id, chunks)
            case Cancel(id):
                self._tasks.pop(id, None)
                engine.cancel(id)
            case Encode(id, waveform, pad_left):
                engine.encode(id, waveform, pad_left=pad_left)
                self._tasks[id] = _Task(front)
            case Decode(id, latents):
                engine.decode(id, latents)
                self._tasks[id] = _Task(front)
            case Stop():
                self.stopped = True
            case Attach(attached):
                self._fronts.add(attached)
                self._errands.append(command)
                yield attached, Ready(engine.info)
            case Detach(gone):
                self._fronts.discard(gone)
                self._errands.append(command)
                for id in [id for id, task in self._tasks.items() if task.front == gone]:
                    del self._tasks[id]
                    engine.cancel(id)
            case EngineCame() | EngineWent():
                logger.error("%s came to an engine; it is for fronts", type(command).__name__)

    def _refuse(self, id: str, error: Exception) -> Failed:
        if isinstance(error, VoxCPMError):
            return Failed.of(id, error)
        logger.error("request %s failed", id, exc_info=error)
        self._tasks.pop(id, None)
        self._engine.cancel(id)  # nobody listens from now on: it must not keep a slot
        return Failed.of(id, Internal())
