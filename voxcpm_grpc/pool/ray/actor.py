"""The engine on a node of a Ray cluster: the same desk as in an engine process, with letters that Ray carries."""

from __future__ import annotations

import contextlib
import logging
import queue
import sys
from collections.abc import Callable, Iterator
from time import monotonic

from voxcpm_grpc.ipc import messages
from voxcpm_grpc.ipc.messages import Report
from voxcpm_grpc.worker import main
from voxcpm_grpc.worker.dispatcher import Dispatcher, EngineLike, Heartbeat

logger = logging.getLogger(__name__)


class VoxCPMEngine:
    """What Ray makes an actor of; `ray_handle` is its other end. Each of its methods runs in a thread of its own.

    `make_engine` is called on the node. What is sent and returned are messages of `messages`, encoded by it.
    """

    def __init__(self, make_engine: Callable[[], EngineLike], name: str, log_level: str) -> None:
        logging.basicConfig(
            level=log_level.upper(),
            stream=sys.stderr,
            format=f"%(asctime)s %(levelname)s {name} %(name)s: %(message)s",
            force=True,
        )
        self._make_engine = make_engine
        self._pulse = Heartbeat()
        self._in: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Load the model, then step until Stop. Raises what the engine raises."""
        try:
            engine, word = main.start(self._make_engine, self._pulse)
            self._say([word])
            if engine is not None:
                self._serve(Dispatcher(engine, self._pulse))
        except Exception:
            logger.critical("the engine failed; its actor ends", exc_info=True)
            raise
        finally:
            self._out.put(None)

    def post(self, letters: list[bytes]) -> None:
        """Commands, in the order of the calls; one call at a time keeps it."""
        for letter in letters:
            self._in.put(letter)

    def reports(self) -> Iterator[list[bytes]]:
        """All that was said since the last time, a step each; beats come between, whatever the loop is doing."""
        beat_at = monotonic()
        while True:
            letters = list(self._said(max(0.0, beat_at - monotonic())))
            over = letters[-1:] == [None]
            batch = [letter for letter in letters if letter is not None]
            if monotonic() >= beat_at:
                beat_at = monotonic() + messages.BEAT_SECONDS
                batch.append(messages.encode_reports([self._pulse.beat()]))
            if batch:
                yield batch
            if over:
                return

    def _serve(self, desk: Dispatcher) -> None:
        while not desk.stopped:
            for reports in desk.round(self._mail(wait=not desk.busy)).values():
                self._say(reports)

    def _say(self, reports: list[Report]) -> None:
        self._out.put(messages.encode_reports(reports))  # at once, for the engine uses its buffers again

    def _said(self, seconds: float) -> Iterator[bytes | None]:
        """What waits to be sent; comes back after `seconds` if there is nothing."""
        with contextlib.suppress(queue.Empty):
            yield self._out.get(timeout=seconds) if seconds else self._out.get_nowait()
            while True:
                yield self._out.get_nowait()

    def _mail(self, *, wait: bool) -> Iterator[tuple[str, bytes]]:
        """Every command that has come; `wait` sleeps until there is one."""
        with contextlib.suppress(queue.Empty):
            yield main.OWNER, self._in.get(block=wait)
            while True:
                yield main.OWNER, self._in.get_nowait()
