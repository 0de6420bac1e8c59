"""Decoding of uploads in worker processes, because a hostile file may block or crash a decoder."""

from __future__ import annotations

import asyncio
import queue
from concurrent.futures import Future, ThreadPoolExecutor

from voxcpm_grpc import logs
from voxcpm_grpc.audio.cleaning import NO_CLEANING, Cleaning
from voxcpm_grpc.audio.decode import Decoded
from voxcpm_grpc.audio.decode_worker import DecodeWorker, Job, WorkerStopped
from voxcpm_grpc.audio.fair_queue import FairQueue
from voxcpm_grpc.audio.formats import AudioFormat
from voxcpm_grpc.errors import Reason, Unavailable, VoxCPMError
from voxcpm_grpc.logs import LogOptions

TIMEOUT = 30.0
CPU_SECONDS = 10.0  # a minute of audio takes 0.1 s, and 1.2 s with six channels at 192 kHz
RETRY_SECONDS = 2.0


class DecodePool:
    """Worker processes that decode, with an asyncio interface. Jobs of several callers are taken in turn.

    A worker limits the memory, the computing time and the open files of each job; a recording that exceeds a limit or
    crashes the worker is refused with BadAudio. If the worker is stopped from outside, or if the job takes longer than
    `timeout` seconds while it computes for less than `cpu_seconds`, the job runs once more on a new worker and then
    raises Unavailable. The next job gets a new worker in each case. When a caller is cancelled, a waiting job is
    dropped and a running one continues. Workers start with `start`, or with the first job.
    """

    def __init__(
        self,
        workers: int,
        *,
        timeout: float = TIMEOUT,
        cpu_seconds: float = CPU_SECONDS,
        log: LogOptions = logs.DEFAULT,
    ) -> None:
        self._timeout = timeout
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="decode")  # a thread waits for each worker
        self._workers = [DecodeWorker(timeout, cpu_seconds, log) for _ in range(workers)]
        self._idle: queue.SimpleQueue[DecodeWorker] = queue.SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._jobs: FairQueue[tuple[Job, Future[Decoded]]] = FairQueue()
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
        cleaning: Cleaning = NO_CLEANING,
        target_rate: int,
        max_seconds: float,
        max_bytes: int,
        caller: str = "",
    ) -> Decoded:
        """Decode in a worker, with the arguments, the result and the errors of `audio.decode`.

        The recording is also cleaned, and then checked: raises the errors of `check_voice`, and adds `flaws`.

        caller: those who send many recordings wait for each other, and others for one of each worker at most
        Raises Unavailable after `close`, and if workers are stopped from outside.
        """
        if self._closed:
            raise _closing()
        job = Job(
            data=data,
            format_hint=format_hint,
            cleaning=cleaning,
            target_rate=target_rate,
            max_seconds=max_seconds,
            max_bytes=max_bytes,
        )
        result: Future[Decoded] = Future()
        self._jobs.put(caller, (job, result))
        self._threads.submit(self._run_next)
        return await asyncio.wrap_future(result)

    async def close(self) -> None:
        """Kill the workers. Unfinished jobs raise Unavailable."""
        self._closed = True
        await asyncio.to_thread(self._stop)
        await asyncio.to_thread(self._threads.shutdown)
        await asyncio.to_thread(self._stop)  # again, for a worker that was just starting

    def _stop(self) -> None:
        for worker in self._workers:
            worker.close()

    def _warm(self) -> None:
        worker = self._idle.get()  # first in, first out, so that as many calls as workers get each of them
        try:
            worker.start()
        finally:
            self._idle.put(worker)

    def _run_next(self) -> None:
        """Run the next job that was not cancelled, if there is one."""
        while (found := self._jobs.take()) is not None:
            job, result = found
            if result.set_running_or_notify_cancel():
                try:
                    result.set_result(self._run(job))
                except BaseException as error:
                    result.set_exception(error)
                    del found, job, result  # the error refers to this frame
                return

    def _run(self, job: Job) -> Decoded:
        worker = self._idle.get()
        try:
            for _ in range(2):
                if self._closed:
                    break
                worker.start()
                try:
                    return worker.decode(job)
                except WorkerStopped:
                    continue
        except VoxCPMError:
            if self._closed:
                raise _closing() from None
            raise
        finally:
            self._idle.put(worker)
        if self._closed:
            raise _closing()
        raise Unavailable(
            f"the process that decodes the recording was stopped twice, or did not finish within {self._timeout:g} s; "
            "retry",
            retry_after=RETRY_SECONDS,
            reason=Reason.WORKER_STOPPED,
        )


def _closing() -> Unavailable:
    return Unavailable("the server is shutting down", reason=Reason.SHUTTING_DOWN)
