"""What an engine's process does with commands and results, whatever carries them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from time import monotonic
from typing import Protocol

import numpy as np

from voxcpm_grpc.engine import messages
from voxcpm_grpc.engine.messages import (
    Beat,
    Began,
    Cancel,
    Coded,
    Command,
    Credit,
    Decode,
    Encode,
    Ended,
    Failed,
    GetStats,
    Report,
    Spoke,
    Statistics,
    Stop,
    Submit,
)
from voxcpm_grpc.errors import Internal, VoxCPMError
from voxcpm_grpc.request import Admitted, AudioChunk, Event, Finished, ModelInfo, Piece, Request, Stats

logger = logging.getLogger(__name__)


class EngineLike(Protocol):
    """What the desk needs of an Engine. `busy` must not count streams that wait for credit, or the loop would spin."""

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
    def step(self) -> list[tuple[str, Event | Piece | VoxCPMError]]: ...
    def stats(self) -> Stats: ...


class Pulse:
    """How long the loop has been at its present step. Written by the loop, read by the thread that sends beats."""

    def __init__(self) -> None:
        self.slowest_step = 0.0  # of the warm-up
        self._began: float | None = None

    def __enter__(self) -> None:
        self._began = monotonic()

    def __exit__(self, *_: object) -> None:
        self._began = None

    def beat(self) -> Beat:
        began = self._began
        return Beat(0.0 if began is None else monotonic() - began, self.slowest_step)


class Desk:
    """One engine, the fronts it works for, and who asked for what.

    A loop round it waits for letters unless the engine is `busy`, hands them to `round`, and sends what that returns.
    """

    def __init__(self, engine: EngineLike, pulse: Pulse) -> None:
        self.stopped = False  # somebody said Stop
        self._engine = engine
        self._pulse = pulse
        self._owners: dict[str, str] = {}  # the front behind each request and job

    @property
    def busy(self) -> bool:
        return self._engine.busy

    def round(self, letters: Iterable[tuple[str, bytes | memoryview]]) -> dict[str, list[Report]]:
        """Obey every letter, make one step if there is something to do, and sort by front what all this brought.

        A letter is the name of a front and the command it encoded. Faults of a command or a request end that request
        alone; what `step` raises, this raises.
        """
        reports: defaultdict[str, list[Report]] = defaultdict(list)
        for front, data in letters:
            with self._pulse:
                reports[front] += self._read(front, data)
        with self._pulse:
            if self._engine.busy:
                for id, result in self._engine.step():
                    report = _report(id, result)
                    ends = isinstance(report, Ended | Failed) or (isinstance(report, Coded) and report.event.last)
                    owner = self._owners.pop(id, None) if ends else self._owners.get(id)
                    if owner is not None:  # else it was cancelled
                        reports[owner].append(report)
        return {front: batch for front, batch in reports.items() if batch}

    def _read(self, front: str, data: bytes | memoryview) -> list[Report]:
        try:
            return self._obey(front, messages.decode_command(data))
        except Exception as error:
            return [self._refuse(messages.command_id(data), error)]

    def _obey(self, front: str, command: Command) -> list[Report]:
        engine = self._engine
        match command:
            case Submit(request, credit):
                engine.add(request, credit)
                self._owners[request.id] = front
            case Credit(id, chunks):
                engine.grant(id, chunks)
            case Cancel(id):
                self._owners.pop(id, None)
                engine.cancel(id)
            case Encode(id, waveform, pad_left):
                engine.encode(id, waveform, pad_left=pad_left)
                self._owners[id] = front
            case Decode(id, latents):
                engine.decode(id, latents)
                self._owners[id] = front
            case GetStats(id):
                return [Statistics(id, engine.stats())]
            case Stop():
                self.stopped = True
        return []

    def _refuse(self, id: str, error: Exception) -> Failed:
        if isinstance(error, VoxCPMError):
            return Failed.of(id, error)
        logger.error("request %s failed", id, exc_info=error)
        self._owners.pop(id, None)
        self._engine.cancel(id)  # nobody listens from now on: it must not keep a slot
        return Failed.of(id, Internal())


def _report(id: str, result: Event | Piece | VoxCPMError) -> Report:
    match result:
        case Admitted():
            return Began(id, result)
        case AudioChunk():
            return Spoke(id, result)
        case Finished():
            return Ended(id, result)
        case Piece():
            return Coded(id, result)
        case VoxCPMError():
            return Failed.of(id, result)
