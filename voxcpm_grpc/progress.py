"""Progress of a start: code that takes seconds reports its step, and the process that starts receives the reports."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from time import monotonic

GIGABYTE, MEGABYTE = 10**9, 10**6
PACE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of a start, such as "the model is loading".

    source: name of the process that makes the step; empty for this one
    done, total: parts of the step, or bytes if `in_bytes` is true; a total of 0 is unknown
    """

    step: str
    done: int = 0
    total: int = 0
    in_bytes: bool = False
    source: str = ""

    def __str__(self) -> str:
        if not (self.done or self.total):
            return self.step
        if not self.in_bytes:
            return f"{self.step}, {self.done} of {self.total}"
        unit, name = (GIGABYTE, "GB") if max(self.done, self.total) >= GIGABYTE else (MEGABYTE, "MB")
        total = f" of {self.total / unit:.1f}" if self.total else ""
        return f"{self.step}, {self.done / unit:.1f}{total} {name}"


Listener = Callable[[Progress], None]


def ignore(_: Progress) -> None:
    """The listener outside of a start."""


_listener: ContextVar[Listener] = ContextVar("listener", default=ignore)


def listener() -> Listener:
    """The function that receives the reports of this context, for code that reports from other threads."""
    return _listener.get()


def report(step: str, done: int = 0, total: int = 0) -> None:
    """Report a step of the start that this context is part of. Does nothing outside of a start."""
    _listener.get()(Progress(step, done, total))


def forwarder(source: str) -> Listener:
    """A function that passes the progress of another process, of the name `source`, to the listener of this context."""
    receive = _listener.get()
    return lambda progress: receive(replace(progress, source=source))


def counting(step: str, total: int) -> Callable[[], None]:
    """Report a step of `total` parts. Each call of the result counts one more of them as done, from any thread."""
    receive, lock, done = _listener.get(), threading.Lock(), 0
    if total:
        receive(Progress(step, 0, total))

    def count() -> None:
        nonlocal done
        with lock:
            done += 1
            receive(Progress(step, done, total))

    return count


def paced(receive: Listener) -> Listener:
    """A listener that passes on every new step, and of the counts within a step one in PACE_SECONDS, and the last."""
    step, sent_at = "", 0.0

    def on_progress(progress: Progress) -> None:
        nonlocal step, sent_at
        now = monotonic()
        if progress.step != step or progress.done == progress.total or now - sent_at >= PACE_SECONDS:
            step, sent_at = progress.step, now
            receive(progress)

    return on_progress


@contextmanager
def reported_to(receive: Listener) -> Iterator[None]:
    """Pass the reports of the block to a function. Those of `counting` may come from other threads, one at a time."""
    token = _listener.set(receive)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def unreported() -> Iterator[None]:
    """Report nothing in the block, which repeats the steps of a start for another purpose."""
    with reported_to(ignore):
        yield
