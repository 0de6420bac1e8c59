"""Normalisation of text in a process of its own, because its libraries and rules would hold Python's lock."""

from __future__ import annotations

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection

from voxcpm_grpc import logs
from voxcpm_grpc.errors import Reason, Unavailable, shutting_down
from voxcpm_grpc.helper_process import READY, HelperProcess
from voxcpm_grpc.ipc.process import set_up
from voxcpm_grpc.logs import LogOptions

log = logging.getLogger(__name__)
TIMEOUT = 30.0  # seconds for a text, which takes less than 0.2 on a core of its own
STARTUP_SECONDS = 120.0
RETRY_SECONDS = 2.0
LOADING = ("1 cat.", "1。", "1つ")  # each library reads one of these texts


class TextNormalizer:
    """Normalises one text after the other. The process starts with `start` or the first text, and ends with `close`."""

    def __init__(self, *, timeout: float = TIMEOUT, log: LogOptions = logs.DEFAULT) -> None:
        self._timeout = timeout
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="normalize")  # this thread waits for the process
        self._helper = HelperProcess(_serve, log, name="normalize")

    @property
    def pid(self) -> int | None:
        """The process id; None before the first start."""
        return self._helper.pid

    def start(self) -> None:
        """Start the process in the background, so that the first text finds it ready. If it fails, a text starts it."""
        self._threads.submit(self._start_early)

    async def normalize(self, text: str, language: str = "") -> str:
        """The text as a reader says it. Raises Unavailable if the process is stopped twice, and after `close`.

        language: a primary tag, or empty for the language of the script
        """
        if self._helper.closed:
            raise shutting_down()
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, text, language)

    async def close(self) -> None:
        """End the process. Unfinished texts raise Unavailable."""
        self._helper.close()
        await asyncio.to_thread(self._threads.shutdown)
        self._helper.close()

    def _run(self, text: str, language: str) -> str:
        for _ in range(2):
            if self._helper.closed:
                break
            try:
                self._helper.start(STARTUP_SECONDS)
                pipe = self._helper.pipe
                pipe.send_bytes(json.dumps([text, language]).encode())
                if pipe.poll(self._timeout):
                    return str(json.loads(pipe.recv_bytes()))
            except (EOFError, OSError):
                pass
            self._helper.stop()
            log.warning("the process that normalises text was stopped; %d characters", len(text))
        if self._helper.closed:
            raise shutting_down()
        raise Unavailable(
            f"the process that normalises text was stopped twice, or did not finish within {self._timeout:g} s; retry",
            retry_after=RETRY_SECONDS,
            reason=Reason.WORKER_STOPPED,
        )

    def _start_early(self) -> None:
        try:
            self._helper.start(STARTUP_SECONDS)
            log.info("the process that normalises text is ready")
        except Exception as error:
            if not self._helper.closed:
                self._helper.stop()
                log.warning("the process that normalises text did not start: %r; the first text starts it again", error)


def _serve(pipe: Connection, log_options: LogOptions) -> None:
    """Normalise until the parent closes the pipe."""
    set_up(log_options)
    from voxcpm_server.text.normalize.readings import normalized

    for text in LOADING:
        normalized(text)
    with suppress(EOFError, OSError):
        pipe.send_bytes(READY)
        while True:
            text, language = json.loads(pipe.recv_bytes())
            pipe.send_bytes(json.dumps(normalized(text, language)).encode())
