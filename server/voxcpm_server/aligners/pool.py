"""Alignment in processes of its own, because an aligner would hold Python's lock while it listens."""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Thread

import numpy as np

from voxcpm_grpc import logs
from voxcpm_grpc.errors import StartupError
from voxcpm_grpc.helper_process import READY, HelperProcess
from voxcpm_grpc.logs import LogOptions
from voxcpm_server.aligners.aligner import Timed
from voxcpm_server.aligners.messages import Begin, Drop, Finish, Found, Message, Outcome, Push
from voxcpm_server.aligners.process import serve

log = logging.getLogger(__name__)
TIMEOUT = 30.0  # seconds for an answer, which takes some milliseconds on a core of its own
STARTUP_SECONDS = 120.0
RETRY_SECONDS = 60.0  # seconds after a start that failed, and between two warnings
MAX_BACKLOG_SECONDS = 120.0  # seconds of speech that waits for a process; later speech is not aligned
ENDED = Found(outcome=Outcome.ENDED)
OnFound = Callable[[Sequence[Timed], Outcome], None]


class AlignerPool:
    """Processes that align, each with all aligners. They start with `start`, or with the first alignment.

    names: the aligners, as `known.load` takes them; the first one that serves a language aligns it
    """

    def __init__(self, names: Sequence[str], processes: int = 1, *, log: LogOptions = logs.DEFAULT) -> None:
        self._processes = [_Process(names, log) for _ in range(processes)]
        self._ids = itertools.count()
        self._next_warning = 0.0  # the next warning comes no earlier than this

    async def start(self) -> None:
        """Start the processes, and wait until they are ready. Raises StartupError."""
        await asyncio.gather(*(process.start() for process in self._processes))

    @property
    def pids(self) -> list[int]:
        """The process ids."""
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def open(self) -> int:
        """Alignments in progress."""
        return sum(process.open for process in self._processes)

    def begin(self, words: Sequence[str], rate: int, language: str, on_found: OnFound) -> RunningAlignment | None:
        """Begin an alignment; None if so much speech waits for it that it would come too late.

        words: the text as it is spoken, divided into words
        rate: sample rate of the speech in Hz
        language: its primary subtag, or empty
        on_found: receives the words that are found, in the loop of this call
        """
        process = min(self._processes, key=lambda one: (one.backlog_seconds, one.open))
        if process.backlog_seconds > MAX_BACKLOG_SECONDS:
            if time.monotonic() >= self._next_warning:
                self._next_warning = time.monotonic() + RETRY_SECONDS
                log.warning("%g s of speech wait for aligners; some times are estimated", MAX_BACKLOG_SECONDS)
            return None
        alignment = RunningAlignment(next(self._ids), rate, process, on_found)
        process.put(alignment, Begin(alignment.id, words, rate, language))
        return alignment

    async def close(self) -> None:
        """End the processes. Alignments end without further words."""
        for process in self._processes:
            process.stop()
        for process in self._processes:
            await asyncio.to_thread(process.join)


class RunningAlignment:
    """An alignment in progress. Its words arrive at `on_found`, until an outcome other than GOES_ON."""

    def __init__(self, id: int, rate: int, process: _Process, on_found: OnFound) -> None:
        self.id = id
        self.loop = asyncio.get_running_loop()
        self._rate = rate
        self._process = process
        self._on_found: OnFound | None = on_found
        process.open += 1

    def push(self, samples: np.ndarray) -> None:
        """Take more speech, float32 [n]."""
        if self._on_found is not None:
            self._process.put(self, Push(self.id, samples.astype(np.float32).tobytes()), len(samples) / self._rate)

    def finish(self, *, complete: bool) -> None:
        """The speech has ended. complete: False if it was cut off"""
        if self._on_found is not None:
            self._process.put(self, Finish(self.id, complete))

    def close(self) -> None:
        """End the alignment; `on_found` is not called any more."""
        if self._on_found is not None:
            self._end()
            self._process.put(self, Drop(self.id))

    def on_found(self, found: Found, seconds: float) -> None:
        """The answer to a message with so many seconds of speech."""
        self._process.backlog_seconds -= seconds
        if (on_found := self._on_found) is not None:
            if found.outcome is not Outcome.GOES_ON:
                self._end()
            on_found(found.words, found.outcome)

    def _end(self) -> None:
        self._on_found = None
        self._process.open -= 1


class _Process:
    """A process with aligners, and the thread that waits for its answers.

    backlog_seconds: speech that waits for it
    open: alignments in progress
    """

    def __init__(self, names: Sequence[str], log_options: LogOptions) -> None:
        self._helper = HelperProcess(serve, names, log_options, name="align")
        self._messages: queue.SimpleQueue[tuple[RunningAlignment, Message, float] | None] = queue.SimpleQueue()
        self._begun: set[int] = set()  # the process that runs has begun these alignments
        self._next_start = 0.0  # after a start that failed, the next one comes no earlier than this
        self._thread: Thread | None = None
        self.backlog_seconds = 0.0
        self.open = 0

    @property
    def pid(self) -> int | None:
        return self._helper.pid

    async def start(self) -> None:
        """Raises StartupError."""
        await asyncio.to_thread(self._start)

    def put(self, alignment: RunningAlignment, message: Message, seconds: float = 0.0) -> None:
        self.backlog_seconds += seconds
        self._messages.put((alignment, message, seconds))
        if self._thread is None:
            self._thread = Thread(target=self._run, name="align", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._messages.put(None)
        self._helper.close()

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()
        self._helper.close()

    def _run(self) -> None:
        while (item := self._messages.get()) is not None and not self._helper.closed:
            alignment, message, seconds = item
            found = self._ask(message)
            with suppress(RuntimeError):  # the loop has ended
                alignment.loop.call_soon_threadsafe(alignment.on_found, found, seconds)
            del item, alignment, message  # they refer to a stream that may end meanwhile

    def _ask(self, message: Message) -> Found:
        """The answer; the end of the alignment if the process was lost or does not start."""
        if not isinstance(message, Begin):
            return (self._exchange(message) if message.id in self._begun else None) or ENDED
        for _ in range(2):  # the process may have ended unnoticed
            if not self._runs():
                return Found(outcome=Outcome.REFUSED)
            self._begun.add(message.id)
            if found := self._exchange(message):
                return found
        return ENDED

    def _exchange(self, message: Message) -> Found | None:
        """The answer; None if the process was lost."""
        try:
            self._helper.pipe.send(message)
            if self._helper.pipe.poll(TIMEOUT):
                found: Found = self._helper.pipe.recv()
                if found.outcome is not Outcome.GOES_ON:
                    self._begun.discard(message.id)
                return found
        except (EOFError, OSError):
            pass
        if not self._helper.closed:
            log.warning("the process that aligns words was stopped; the times of some words are estimated")
        self._helper.stop()
        self._begun.clear()
        return None

    def _runs(self) -> bool:
        """True if the process runs. Starts it if it does not; if that fails, not again for a while."""
        if self._helper.closed or time.monotonic() < self._next_start:
            return False
        try:
            self._start()
        except StartupError as error:
            if not self._helper.closed:
                log.warning("%s; the times of words are estimated", error)
            self._next_start = time.monotonic() + RETRY_SECONDS
            self._helper.stop()
            return False
        return True

    def _start(self) -> None:
        try:
            first = self._helper.start(STARTUP_SECONDS)
        except TimeoutError:
            raise StartupError(f"the process that aligns words was not ready after {STARTUP_SECONDS:g} s") from None
        except (EOFError, OSError):
            raise StartupError("the process that aligns words ended at its start; its log may say why") from None
        if first != READY:
            raise StartupError(first.decode())
        self._next_start = 0.0
