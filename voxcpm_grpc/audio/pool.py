"""Decoding of uploads in worker processes, because a hostile file may block or crash a decoder."""

from __future__ import annotations

import asyncio
import json
import logging
import multiprocessing
import queue
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from voxcpm_grpc.audio.decode import Decoded, decode
from voxcpm_grpc.audio.formats import AudioFormat, BadAudio, Encoding
from voxcpm_grpc.errors import Internal, Unavailable, VoxCPMError, code_of, from_code

log = logging.getLogger(__name__)
STARTUP_SECONDS = 60.0


class DecodePool:
    """Worker processes that decode, with an asyncio interface.

    If a job takes longer than `timeout` seconds or its worker dies, this job fails with BadAudio, and the next job gets
    a new worker. When a caller is cancelled, a waiting job is dropped and a running one continues. Workers start with
    `start`, or with the first job.
    """

    def __init__(self, workers: int, *, timeout: float = 30.0) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="decode")  # a thread waits for each worker
        self._workers = [_Worker(timeout) for _ in range(workers)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers that were started."""
        return [pid for worker in self._workers if (pid := worker.pid) is not None]

    async def start(self) -> None:
        """Start all workers, so that no upload waits for one."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._threads, self._warm) for _ in self._workers))

    async def decode(
        self,
        data: bytes,
        *,
        format_hint: AudioFormat | None = None,
        target_rate: int,
        max_seconds: float,
        max_bytes: int,
    ) -> Decoded:
        """Decode in a worker, with the arguments, the result and the errors of `audio.decode`.

        Raises Unavailable after `close`.
        """
        limits = {"target_rate": target_rate, "max_seconds": max_seconds, "max_bytes": max_bytes}
        options = json.dumps(limits | {"hint": asdict(format_hint) if format_hint else None}).encode()
        if self._closed:
            raise Unavailable("the server is shutting down")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, options, data)

    async def close(self) -> None:
        """Kill the workers. Unfinished jobs raise Unavailable."""
        self._closed = True
        await asyncio.to_thread(self._stop)
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._stop)  # again, for a worker that was just starting

    def _stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _warm(self) -> None:
        worker = self._idle.get()  # first in, first out, so that as many calls as workers get each of them
        try:
            worker.start()
        finally:
            self._idle.put(worker)

    def _run(self, options: bytes, data: bytes) -> Decoded:
        worker = self._idle.get()
        try:
            if self._closed:
                raise Unavailable("the server is shutting down")
            worker.start()
            return worker.decode(options, data)
        except BadAudio:
            if self._closed:
                raise Unavailable("the server is shutting down") from None
            raise
        finally:
            self._idle.put(worker)


class _Worker:
    """A worker process and the pipe to it. Only one thread uses it at a time.

    Messages are JSON and bytes, never pickles, so that a compromised decoder cannot run code in its parent.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._process: Any = None
        self._pipe: Any = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the process if it does not run, and wait until it is ready. Raises Internal if it does not start."""
        if self._process is not None and self._process.is_alive():
            return
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), name="decode", daemon=True)
        process.start()
        self._process = process  # after its start, because `stop` in another thread needs a running process
        theirs.close()  # only the worker holds it, so that the pipe ends when the worker dies
        with suppress(EOFError, OSError):
            if self._pipe.poll(STARTUP_SECONDS) and self._pipe.recv_bytes() == b"ready":
                return
        self.stop()
        log.error("a decode worker did not start")
        raise Internal

    def decode(self, options: bytes, data: bytes) -> Decoded:
        started = time.monotonic()
        watchdog = threading.Timer(self._timeout, self._process.kill)  # ends all waits below, also while sending
        watchdog.start()
        try:
            self._pipe.send_bytes(options)
            self._pipe.send_bytes(data)
            reply = json.loads(self._pipe.recv_bytes())
            if "code" not in reply:
                waveform = np.frombuffer(self._pipe.recv_bytes(), np.float32).copy()
                return Decoded(waveform=waveform, **reply)
        except (EOFError, OSError):
            self.stop()
            log.warning("a decode worker died after %.1f s of %d bytes", time.monotonic() - started, len(data))
            if time.monotonic() - started >= self._timeout:
                raise BadAudio(
                    f"the audio took longer than {self._timeout:g} s to decode; send a simpler one"
                ) from None
            raise BadAudio("the audio could not be decoded") from None
        finally:
            watchdog.cancel()
        if reply["code"] == code_of(BadAudio("")):
            raise BadAudio(reply["message"])
        raise from_code(reply["code"], reply["message"])

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()


def _serve(pipe: Connection) -> None:
    """Run a worker until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    with suppress(ImportError):  # loads them before the first job
        import av  # noqa: F401
        import soxr  # noqa: F401
    pipe.send_bytes(b"ready")
    while True:
        try:
            options, data = json.loads(pipe.recv_bytes()), pipe.recv_bytes()
        except (EOFError, OSError):
            return
        _reply(pipe, options, data)


def _reply(pipe: Connection, options: dict[str, Any], data: bytes) -> None:
    hint = options.pop("hint")
    try:
        format_hint = AudioFormat(Encoding(hint["encoding"]), hint["sample_rate"]) if hint else None
        decoded = decode(data, format_hint=format_hint, **options)
    except VoxCPMError as error:
        reply, waveform = {"code": code_of(error), "message": error.message}, None
    except Exception:
        log.exception("decoding %d bytes failed", len(data))
        error = Internal()
        reply, waveform = {"code": code_of(error), "message": error.message}, None
    else:
        reply, waveform = {"source_rate": decoded.source_rate, "seconds": decoded.seconds}, decoded.waveform
    pipe.send_bytes(json.dumps(reply).encode())
    if waveform is not None:
        pipe.send_bytes(np.ascontiguousarray(waveform, np.float32).data)
