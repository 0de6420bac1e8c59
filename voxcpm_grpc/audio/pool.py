"""Decoding away from the event loop, in processes that may hang or die of what they are fed."""

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
    """`workers` spawned processes behind an asyncio face.

    A job that outlives `timeout` seconds, or kills its worker, fails alone with BadAudio; the next job finds a new
    worker. Waiting jobs stop with their caller, running ones end by themselves. Processes start when first needed.
    """

    def __init__(self, workers: int, *, timeout: float = 30.0) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="decode")  # one blocked thread for each worker
        self._workers = [_Worker(timeout) for _ in range(workers)]
        self._idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._closed = False

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers that were started."""
        return [pid for worker in self._workers if (pid := worker.pid) is not None]

    async def start(self) -> None:
        """Start every worker now, so that no upload waits for it."""
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
        """`audio.decode` in a worker: the same arguments, result and errors. Raises Unavailable after `close`."""
        limits = {"target_rate": target_rate, "max_seconds": max_seconds, "max_bytes": max_bytes}
        options = json.dumps(limits | {"hint": asdict(format_hint) if format_hint else None}).encode()
        if self._closed:
            raise Unavailable("the server is shutting down")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, options, data)

    async def close(self) -> None:
        """Kill the workers; unfinished jobs raise Unavailable."""
        self._closed = True
        await asyncio.to_thread(self._stop)
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._stop)  # a worker may have been starting

    def _stop(self) -> None:
        for worker in self._workers:
            worker.stop()

    def _warm(self) -> None:
        worker = self._idle.get()  # first in, first out: as many turns as workers reach each of them
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
    """One process and the pipe to it, used by one thread at a time.

    Messages are JSON and plain bytes, never pickles: a decoder that was taken over must not take over its parent.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._process: Any = None
        self._pipe: Any = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Returns with a live worker, a new one if there is none. Blocks while it imports."""
        if self._process is not None and self._process.is_alive():
            return
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs,), name="decode", daemon=True)
        process.start()
        self._process = process  # only now: `stop` may come from another thread and needs one that runs
        theirs.close()  # held by the worker alone, so that its death is the end of the pipe
        with suppress(EOFError, OSError):
            if self._pipe.poll(STARTUP_SECONDS) and self._pipe.recv_bytes() == b"ready":
                return
        self.stop()
        log.error("a decode worker did not start")
        raise Internal

    def decode(self, options: bytes, data: bytes) -> Decoded:
        started = time.monotonic()
        watchdog = threading.Timer(self._timeout, self._process.kill)  # ends every wait below, sending included
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
    """The life of a worker: it ends when its parent's end of the pipe does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    with suppress(ImportError):  # now rather than during the first job
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
