"""The Ray actor of an engine: runs the same dispatcher as an engine's process, with messages that Ray carries."""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable, Iterator
from time import monotonic

from voxcpm_grpc import logs, progress
from voxcpm_grpc.ipc import encoding, messages
from voxcpm_grpc.ipc.messages import Report, Starting
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.worker.dispatcher import Dispatcher
from voxcpm_grpc.worker.engine_like import EngineLike
from voxcpm_grpc.worker.heartbeat import StepTimer
from voxcpm_grpc.worker.main import start_engine

logger = logging.getLogger(__name__)

WAKE = b""  # in the inbox, it is not a command, but the end of a wait
FRONT = "front"  # there is only one


class VoxCPMEngine:
    """The class of the actor, whose other end is `ray.engine`. Ray runs each of its methods in a thread of its own.

    The actor calls `make_engine`. Arguments and results are encoded messages of `ipc.messages`.
    """

    def __init__(self, make_engine: Callable[[], EngineLike], name: str, log: LogOptions) -> None:
        logs.set_up(log, name)
        self._make_engine = make_engine
        self._timer = StepTimer()
        self._inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Load the model, then run the engine until Stop. Raises what the engine raises."""
        try:
            with progress.reported_to(progress.paced(lambda step: self._send([Starting(step)]))):
                engine, report = start_engine(self._make_engine, self._timer)
            self._send([report])
            if engine is not None:
                self._serve(Dispatcher(engine, self._timer, wake=lambda: self._inbox.put(WAKE)))
        except Exception:
            logger.critical("the engine failed; its actor ends", exc_info=True)
            raise
        finally:
            self._outbox.put(None)

    def post(self, commands: list[bytes]) -> None:
        """Queue encoded commands. Calls one at a time keep their order."""
        for command in commands:
            self._inbox.put(command)

    def reports(self) -> Iterator[list[bytes]]:
        """Yield the encoded reports since the last time, one item for each step, and heartbeats between them."""
        heartbeat_at = monotonic()
        while True:
            items = list(self._sent(max(0.0, heartbeat_at - monotonic())))
            ended = items[-1:] == [None]
            reports = [item for item in items if item is not None]
            if monotonic() >= heartbeat_at:
                heartbeat_at = monotonic() + messages.HEARTBEAT_SECONDS
                reports.append(encoding.encode([self._timer.heartbeat()]))
            if reports:
                yield reports
            if ended:
                return

    def _serve(self, dispatcher: Dispatcher) -> None:
        while not dispatcher.stopped:
            for reports in dispatcher.run_once(self._received(wait=not dispatcher.busy)).values():
                self._send(reports)

    def _send(self, reports: list[Report]) -> None:
        # The reports are encoded at once, because the engine reuses its buffers.
        self._outbox.put(encoding.encode(reports))

    def _sent(self, seconds: float) -> Iterator[bytes | None]:
        """Yield the items that wait to be sent. Waits up to `seconds` for the first."""
        with contextlib.suppress(queue.Empty):
            yield self._outbox.get(timeout=seconds) if seconds else self._outbox.get_nowait()
            while True:
                yield self._outbox.get_nowait()

    def _received(self, *, wait: bool) -> Iterator[tuple[str, bytes]]:
        """Yield each command that has arrived; `wait` blocks until there is one, or a wake."""
        with contextlib.suppress(queue.Empty):
            command = self._inbox.get(block=wait)
            while True:
                if command != WAKE:
                    yield FRONT, command
                command = self._inbox.get_nowait()
