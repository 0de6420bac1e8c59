"""Statistics of engines in other processes: each engine writes its own into a file, and tests read the files."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path

import msgspec

from voxcpm_grpc.request import Stats
from voxcpm_grpc.worker.engine_like import EngineLike

CHANGES = ("add", "cancel", "step")  # the methods of an engine that change its statistics


@dataclass(frozen=True)
class RecordStats:
    """Makes an engine that records its statistics after every change, in a file of `folder` named after its process.

    A step is recorded before its results are sent.
    """

    make_engine: Callable[[], EngineLike]
    folder: Path

    def __call__(self) -> EngineLike:
        engine = self.make_engine()
        self._record(engine)
        for name in CHANGES:
            setattr(engine, name, self._recorded(engine, getattr(engine, name)))
        return engine

    def _recorded(self, engine: EngineLike, method: Callable) -> Callable:
        @wraps(method)
        def recorded(*args, **options):
            try:
                return method(*args, **options)
            finally:
                self._record(engine)

        return recorded

    def _record(self, engine) -> None:
        file = self.folder / str(os.getpid())
        temporary = file.with_suffix(".new")
        temporary.write_bytes(msgspec.json.encode(engine.stats()))
        temporary.replace(file)


def recorded_stats(folder: Path, pid: int | None) -> Stats:
    """The statistics that the engine of a process recorded last."""
    return msgspec.json.decode((folder / str(pid)).read_bytes(), type=Stats)
