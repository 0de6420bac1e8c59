"""The start of a server: a log line for each step, and an estimate of the time until the server is ready."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from voxcpm_grpc import progress
from voxcpm_grpc.checkpoint import DOWNLOADING
from voxcpm_grpc.home import home
from voxcpm_grpc.progress import Progress
from voxcpm_grpc.settings.schema import Settings

log = logging.getLogger(__name__)

CACHE_FILE = ".cache/voxcpm-grpc/starts.json"  # under the user's home
MAX_RECORDS = 50
LOG_SECONDS = 2.0  # between two lines about the same step of a process
UNKNOWN_SECONDS = 15.0  # for the start of a model that was never started here
UNKNOWN_DOWNLOAD_SECONDS = 30.0
MIN_SECONDS, MAX_SECONDS = 1.0, 60.0  # of an estimate
OVERDUE = 0.1  # of the time so far, which a start that takes longer than expected is expected to take still


class StartLog:
    """Writes a line for each step of a start, and for the progress of a step one in LOG_SECONDS, and the last."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, float]] = {}  # by source, the step and the time of its last line

    def write(self, step: Progress) -> None:
        now = time.monotonic()
        last, written = self._last.get(step.source, ("", 0.0))
        complete = bool(step.total) and step.done == step.total
        if step.step == last and not complete and now - written < LOG_SECONDS:
            return
        self._last[step.source] = step.step, now
        log.info("start: %s%s", f"{step.source}: " if step.source else "", step)


class Start:
    """The start of one server, which logs its steps and estimates the time until the server is ready.

    The estimate is the duration of the last start with the same model and engines, which `finish` records in a file.

    report: receives the text of each step
    recorded: True if durations are read and written
    engine_lines: True if the steps of engines are logged here, and not by the process that starts them
    """

    def __init__(
        self, settings: Settings, *, engine_lines: bool = True, recorded: bool = True, file: Path | None = None
    ) -> None:
        self.report: Callable[[str], None] = _ignore
        self._file = (file or _cache_file()) if recorded else None
        self._key = _key(settings)
        self._expected = _read(self._file).get(self._key, UNKNOWN_SECONDS)
        self._began = time.monotonic()
        self._download_ended: float | None = None
        self._engine_lines = engine_lines
        self._log = StartLog()
        self._finished = False
        self._steps: dict[str, tuple[Progress, float]] = {}  # the last one of each process, and its begin

    def on_progress(self, step: Progress) -> None:
        """Take note of a step, of this process or of an engine. After the start, engines that restart are logged."""
        if self._engine_lines or not step.source:
            self._log.write(step)
        if self._finished:
            return
        last, began = self._steps.get(step.source, (None, 0.0))
        if last is None or last.step != step.step:
            began = time.monotonic()
            if last and last.step == DOWNLOADING:
                self._download_ended = began
        self._steps[step.source] = step, began
        self.report(str(step))

    @contextmanager
    def reported(self) -> Iterator[None]:
        """Take note of the steps that the block reports, and of those of tasks that it starts."""
        with progress.reported_to(self.on_progress):
            yield

    def remaining(self) -> float:
        """The expected seconds until the server is ready, from MIN_SECONDS to MAX_SECONDS."""
        now = time.monotonic()
        rest = max((_rest(step, now - began) for step, began in self._steps.values()), default=0.0)
        if any(step.step == DOWNLOADING for step, _ in self._steps.values()) and self._download_ended is None:
            seconds = self._expected + (rest or UNKNOWN_DOWNLOAD_SECONDS)
        else:
            elapsed = now - (self._download_ended or self._began)
            seconds = max(self._expected - elapsed, rest, OVERDUE * elapsed)
        return min(max(seconds, MIN_SECONDS), MAX_SECONDS)

    def finish(self) -> None:
        """End the start: record its duration, without a download, and log it."""
        self._finished = True
        now = time.monotonic()
        log.info("start: the server is ready after %.1f s", now - self._began)
        _record(self._file, self._key, now - (self._download_ended or self._began))


def _ignore(_: str) -> None:
    pass


def _rest(step: Progress, elapsed: float) -> float:
    """The expected rest, in seconds, of a step that counts its parts; 0.0 without counts."""
    return elapsed * (step.total - step.done) / step.done if step.done and step.total else 0.0


def _key(settings: Settings) -> str:
    """A hash of all that decides how long a start takes."""
    parts = settings.model, settings.revision, settings.pool, settings.devices, settings.engine
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _cache_file() -> Path | None:
    found = home()
    return found and found / CACHE_FILE


def _read(file: Path | None) -> dict[str, float]:
    try:
        found = json.loads(file.read_text("utf-8")) if file else {}
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(key): float(value) for key, value in found.items() if isinstance(value, int | float)}


def _record(file: Path | None, key: str, seconds: float) -> None:
    """Write a duration. A file that cannot be written is left alone: the next start has a worse estimate."""
    if file is None:
        return
    records = {**_read(file)}
    records.pop(key, None)
    records[key] = round(seconds, 2)
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(dict(list(records.items())[-MAX_RECORDS:])), "utf-8")
        new.replace(file)
