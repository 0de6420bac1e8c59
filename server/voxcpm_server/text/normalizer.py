"""Normalisation of text in a process of its own, because its libraries and rules would hold Python's lock."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from voxcpm_grpc import logs
from voxcpm_grpc.errors import Reason, Unavailable
from voxcpm_grpc.ipc.process import set_up
from voxcpm_grpc.logs import LogOptions

log = logging.getLogger(__name__)
TIMEOUT = 30.0  # seconds for a text, which takes less than 0.2 on a core of its own
STARTUP_SECONDS = 120.0
RETRY_SECONDS = 2.0
LOADING = ("1 cat.", "1。", "1つ")  # one text for each library


class TextNormalizer:
    """Normalises one text after the other. The process starts with `start` or the first text, and ends with `close`."""

    def __init__(self, *, timeout: float = TIMEOUT, log: LogOptions = logs.DEFAULT) -> None:
        self._timeout = timeout
        self._log_options = log
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="normalize")  # waits for the process
        self._process: Any = None
        self._pipe: Any = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The process id; None before the first start."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process in the background, so that the first text finds it ready. If it fails, a text starts it."""
        self._threads.submit(self._start_early)

    async def normalize(self, text: str, language: str = "") -> str:
        """The text as a reader says it. Raises Unavailable if the process is stopped twice, and after `close`.

        language: a primary tag, or empty for the language of the script
        """
        if self._closed:
            raise _closing()
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, text, language)

    async def close(self) -> None:
        """End the process. Unfinished texts raise Unavailable."""
        self._closed = True
        self._stop()
        await asyncio.to_thread(self._threads.shutdown)
        self._stop()  # again, for a process that was just starting

    def _run(self, text: str, language: str) -> str:
        for _ in range(2):
            if self._closed:
                break
            try:
                self._start()
                self._pipe.send_bytes(json.dumps([text, language]).encode())
                if self._pipe.poll(self._timeout):
                    return str(json.loads(self._pipe.recv_bytes()))
            except (EOFError, OSError):
                pass
            self._stop()
            log.warning("the process that normalises text was stopped; %d characters", len(text))
        if self._closed:
            raise _closing()
        raise Unavailable(
            f"the process that normalises text was stopped twice, or did not finish within {self._timeout:g} s; retry",
            retry_after=RETRY_SECONDS,
            reason=Reason.WORKER_STOPPED,
        )

    def _start_early(self) -> None:
        try:
            self._start()
            log.info("the process that normalises text is ready")
        except Exception as error:
            if not self._closed:
                self._stop()
                log.warning("the process that normalises text did not start: %r; the first text starts it again", error)

    def _start(self) -> None:
        """Start the process if it does not run, and wait until it is ready."""
        if self._process is not None and self._process.is_alive():
            return
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, self._log_options), name="normalize", daemon=True)
        process.start()
        self._process = process  # after its start, because `close` in another thread needs a running process
        theirs.close()  # only the child holds it, so that the pipe ends when the child dies
        if self._closed:  # and has ended no process, because there was none yet
            raise EOFError
        if not self._pipe.poll(STARTUP_SECONDS):
            raise EOFError
        self._pipe.recv_bytes()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()


def _closing() -> Unavailable:
    return Unavailable("the server is shutting down", reason=Reason.SHUTTING_DOWN)


def _serve(pipe: Connection, log_options: LogOptions) -> None:
    """Normalise until the parent closes the pipe."""
    set_up(log_options)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    from voxcpm_server.text.readings import normalized

    for text in LOADING:
        normalized(text)
    with suppress(EOFError, OSError):
        pipe.send_bytes(b"ready")
        while True:
            text, language = json.loads(pipe.recv_bytes())
            pipe.send_bytes(json.dumps(normalized(text, language)).encode())
