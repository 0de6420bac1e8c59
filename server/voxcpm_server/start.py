"""The start of a server: a log line for each step, and an estimate of the time until the server is ready."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from voxcpm_grpc import progress
from voxcpm_grpc.checkpoint import DOWNLOADING
from voxcpm_grpc.progress import Progress

log = logging.getLogger(__name__)

LOG_SECONDS = 2.0  # seconds between two lines about the same step of a process
EXPECTED_SECONDS = 15.0  # seconds of a start without a download
DOWNLOAD_SECONDS = 30.0  # seconds of a download that has counted nothing yet
MIN_SECONDS, MAX_SECONDS = 1.0, 60.0  # seconds of an estimate, at least and at most
OVERDUE = 0.1  # a start that takes longer than expected is expected to take this share of the time so far still


class StartLog:
    """Writes a line for each step of a start, and for the progress of a step one in LOG_SECONDS, and the last."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[str, float]] = {}  # each source has the step and the time of its last line

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

    The estimate follows from the time so far and from the counts of steps that count their parts.

    report: receives the text of each step
    engine_lines: True if the steps of engines are logged here, and not by the process that starts them
    """

    def __init__(self, *, engine_lines: bool = True) -> None:
        self.report: Callable[[str], None] = _ignore
        self._began = time.monotonic()
        self._download_ended: float | None = None
        self._engine_lines = engine_lines
        self._log = StartLog()
        self._finished = False
        self._steps: dict[str, tuple[Progress, float]] = {}  # each process has its last step, and when that began

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
            seconds = EXPECTED_SECONDS + (rest or DOWNLOAD_SECONDS)
        else:
            elapsed = now - (self._download_ended or self._began)
            seconds = max(EXPECTED_SECONDS - elapsed, rest, OVERDUE * elapsed)
        return min(max(seconds, MIN_SECONDS), MAX_SECONDS)

    def finish(self) -> None:
        """End the start, and log its duration."""
        self._finished = True
        log.info("start: the server is ready after %.1f s", time.monotonic() - self._began)


def _ignore(_: str) -> None:
    pass


def _rest(step: Progress, elapsed: float) -> float:
    """The expected rest, in seconds, of a step that counts its parts; 0.0 without counts."""
    return elapsed * (step.total - step.done) / step.done if step.done and step.total else 0.0
