"""The heartbeats of an engine's process, which report how long the current step has lasted."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from time import monotonic

import zmq

from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc.messages import HEARTBEAT_SECONDS, Heartbeat


class StepTimer:
    """Measures the current step. The engine's loop enters and leaves it; another thread calls `heartbeat`.

    Time in which that other thread did not run either does not count. So a process that is paused as a whole, for
    example with its container, does not report a long step when it resumes.
    """

    def __init__(self) -> None:
        self.slowest_step = 0.0  # seconds of the slowest step of the warm-up
        self.work = 0  # requests and codec jobs of the engine count
        self.leaves = False  # it was asked to leave service
        self._started: float | None = None
        self._reported: float | None = None  # the step in the last heartbeat started at this time
        self._busy_seconds = 0.0
        self._last_heartbeat = monotonic()

    def __enter__(self) -> None:
        self._started = monotonic()

    def __exit__(self, *_: object) -> None:
        self._started = None

    def heartbeat(self) -> Heartbeat:
        """The heartbeat to send now. Must be called every `HEARTBEAT_SECONDS`."""
        started, now = self._started, monotonic()
        elapsed = min(now - self._last_heartbeat, 2 * HEARTBEAT_SECONDS)
        self._last_heartbeat = now
        if started is None:
            self._busy_seconds = 0.0
        elif started == self._reported:
            self._busy_seconds += elapsed
        else:
            self._busy_seconds = min(now - started, elapsed)
        self._reported = started
        return Heartbeat(self._busy_seconds, self.slowest_step, self.work, self.leaves)


@contextlib.contextmanager
def sending_heartbeats(timer: StepTimer, context: zmq.Context, address: str) -> Iterator[None]:
    """Send heartbeats to `address` from a thread of their own, until the end of the block.

    They stop when the process is stopped or blocked as a whole, and report a step that does not end.
    """
    stopped = threading.Event()

    def send() -> None:
        with context.socket(zmq.PUSH) as socket:
            socket.linger = 0
            socket.connect(address)
            while True:
                with contextlib.suppress(zmq.Again):  # a front that does not read can miss a heartbeat
                    socket.send(encoding.encode([timer.heartbeat()]), zmq.DONTWAIT)
                if stopped.wait(HEARTBEAT_SECONDS):
                    return

    thread = threading.Thread(target=send, name="heartbeats", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
