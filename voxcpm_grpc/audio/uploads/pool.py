"""A pool of processes that decode uploads, and the queue that shares them among callers."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from voxcpm_grpc import logs
from voxcpm_grpc.audio.formats import AudioFormat
from voxcpm_grpc.audio.uploads.cleaning import NO_CLEANING, Cleaning
from voxcpm_grpc.audio.uploads.decode import Decoded
from voxcpm_grpc.audio.uploads.process import DecodeWorker, Job, WorkerStopped
from voxcpm_grpc.errors import Reason, Unavailable, VoxCPMError, shutting_down
from voxcpm_grpc.logs import LogOptions

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A queue for threads. A caller with many items delays the first item of another caller by one item at most.

    Start-time fair queueing: items are taken by number. The first item of a caller gets the number of the item that was
    taken last, and each further one the number after the caller's own last.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: list[tuple[int, int, T]] = []  # the heap has the number, the order of arrival and the item
        self._arrivals = itertools.count()
        self._taken = 0  # the item that was taken last had this number
        self._next: dict[str, int] = {}  # the next item of each caller has this number, if it is not `_taken`

    def put(self, caller: str, item: T) -> None:
        with self._lock:
            number = max(self._taken, self._next.get(caller, 0))
            self._next[caller] = number + 1
            heapq.heappush(self._items, (number, next(self._arrivals), item))

    def take(self) -> T | None:
        """Remove the next item; None if there is none."""
        with self._lock:
            if not self._items:
                return None
            self._taken, _, item = heapq.heappop(self._items)
            self._next = {caller: number for caller, number in self._next.items() if number > self._taken}
            return item


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
        return [pid for worker in self._workers if (pid := worker.helper.pid) is not None]

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
            raise shutting_down()
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
        await asyncio.to_thread(self._stop)  # a worker may just have started, so this is called again

    def _stop(self) -> None:
        for worker in self._workers:
            worker.helper.close()

    def _warm(self) -> None:
        worker = self._idle.get()  # the queue is first in, first out, so that as many calls as workers get each of them
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
                raise shutting_down() from None
            raise
        finally:
            self._idle.put(worker)
        if self._closed:
            raise shutting_down()
        raise Unavailable(
            f"the process that decodes the recording was stopped twice, or did not finish within {self._timeout:g} s; "
            "retry",
            retry_after=RETRY_SECONDS,
            reason=Reason.WORKER_STOPPED,
        )
