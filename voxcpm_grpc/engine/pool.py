"""The front's only door to its engines: pick one, reserve, hand over what it says, notice when it is lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np

from voxcpm_grpc.config import EngineSettings
from voxcpm_grpc.engine.handles import Handle, ProcessHandle
from voxcpm_grpc.engine.messages import (
    Began,
    Cancel,
    Coded,
    Command,
    Credit,
    Decode,
    Encode,
    Ended,
    Failed,
    GetStats,
    Report,
    Spoke,
    Statistics,
    Submit,
)
from voxcpm_grpc.engine.worker import LoadEngine
from voxcpm_grpc.errors import Aborted, Internal, InvalidRequest, StartupError, Unavailable, VoxCPMError
from voxcpm_grpc.request import AudioChunk, Event, Finished, ModelInfo, Piece, Request, Stats

logger = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
LEAD_CHUNKS = 128  # about 20 s of speech

T = TypeVar("T")


class EnginePool:
    """Engines that serve the same model. Belongs to one event loop.

    Every call picks the least loaded engine. An engine that dies ends what it was doing: with Unavailable for requests
    without audio so far and for codec jobs, with Aborted for requests with audio.
    """

    def __init__(self, handles: Sequence[Handle]) -> None:
        self._engines = [_Engine(handle, self._on_lost) for handle in handles]
        self._numbers = count()
        self._down = asyncio.Event()

    @classmethod
    def of_processes(
        cls, directory: Path, name: str, settings: EngineSettings, *, log_level: str = "info"
    ) -> EnginePool:
        """One engine for the checkpoint in `directory`, in a process of its own. Starts with `start`."""
        return cls([ProcessHandle(LoadEngine(directory, name, settings), name="engine-0", log_level=log_level)])

    async def start(self) -> None:
        """Wait until every engine is ready. Raises StartupError, with nothing left running, if one cannot start."""
        try:
            async with asyncio.TaskGroup() as group:
                for engine in self._engines:
                    group.create_task(engine.start())
            if len({info.fingerprint for info in self._infos()}) > 1:
                raise StartupError("the engines serve different models; give all of them the same checkpoint")
        except BaseException as error:
            await self.close()
            raise (error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error) from None

    @property
    def info(self) -> ModelInfo:
        """The model that is served. Known once started."""
        return self._infos()[0]

    @property
    def healthy(self) -> bool:
        """Whether an engine is there to take calls."""
        return any(engine.alive for engine in self._engines)

    async def closed_or_lost(self) -> None:
        """Wait until a started pool has no engine left to take calls."""
        await self._down.wait()

    def generate(self, request: Request, *, lead_chunks: int = LEAD_CHUNKS) -> Stream[Event]:
        """Speak a request: Admitted, then AudioChunks in order, then Finished.

        The engine is picked, reserved and told now; errors are raised by iteration. At most `lead_chunks` chunks are
        made ahead of the reader. Closing the stream (see contextlib.aclosing) or dropping it cancels the request.
        """
        credit = max(1, lead_chunks)
        if any(job.name == request.id for engine in self._engines for job in engine.jobs.values()):
            error = InvalidRequest(f"request id {request.id!r} is in use; choose another", field="request_id")
            return Stream(_Job(request.id).fail(error))
        return self._open(request.id, lambda id: Submit(replace(request, id=id), credit), credit)

    async def encode(self, waveform: np.ndarray, *, pad_left: bool) -> np.ndarray:
        """Latents float32 [patches, P, D] of a mono waveform float32 [samples] at the model's input rate.

        Zeros fill the first (`pad_left`, for prompts) or the last patch (for references).
        """
        job: Stream[Piece] = self._open("encode", lambda id: Encode(id, waveform, pad_left))
        async with contextlib.aclosing(job) as pieces:
            arrays = [piece.array async for piece in pieces if piece.array.size]
        return np.concatenate(arrays) if arrays else self._no_latents()

    async def decode(self, latents: np.ndarray) -> AsyncGenerator[np.ndarray]:
        """Audio float32 [samples] at the output rate, piece by piece, of latents [patches, P, D]."""
        job: Stream[Piece] = self._open("decode", lambda id: Decode(id, latents))
        async with contextlib.aclosing(job) as pieces:
            async for piece in pieces:
                if piece.array.size:
                    yield piece.array

    async def stats(self) -> Stats:
        """Load and counters of all engines together. Raises Unavailable if none is left."""
        jobs: list[Stream[Stats]] = [self._ask(engine, "stats", GetStats) for engine in self._living()]
        if not jobs:
            raise _lost()
        each = [await anext(job) for job in jobs]
        return Stats(**{f.name: sum(getattr(stats, f.name) for stats in each) for f in fields(Stats)})

    async def close(self) -> None:
        """Stop all engines; what is still under way ends as if they were lost."""
        await asyncio.gather(*(engine.close() for engine in self._engines))
        self._down.set()

    def _open(self, name: str, command: Callable[[str], Command], credit: int = 0) -> Stream:
        engines = self._living()
        if not engines:
            return Stream(_Job(name).fail(_lost()))
        return self._ask(min(engines, key=lambda engine: len(engine.jobs)), name, command, credit)

    def _ask(self, engine: _Engine, name: str, command: Callable[[str], Command], credit: int = 0) -> Stream:
        # An id that never returns: what an engine still says about a cancelled request must not reach its successor.
        id = f"{name}.{next(self._numbers)}"
        job = _Job(name)
        engine.jobs[id] = job
        try:
            engine.handle.post(command(id))
        except Exception:
            logger.exception("request %s cannot be sent to %s", id, engine.handle.name)
            del engine.jobs[id]
            job.fail(Internal())
        return Stream(job, engine, id, credit)

    def _living(self) -> list[_Engine]:
        return [engine for engine in self._engines if engine.alive]

    def _infos(self) -> list[ModelInfo]:
        return [engine.info for engine in self._engines if engine.info]

    def _no_latents(self) -> np.ndarray:
        return np.zeros((0, self.info.patch_size, self.info.latent_dim), np.float32)

    def _on_lost(self) -> None:
        if not self.healthy:
            self._down.set()


class Stream(Generic[T]):
    """What an engine says about one request or job, in order. An asynchronous iterator for one reader.

    Dropping it, closing it and cancelling its reader all cancel what it stands for.
    """

    def __init__(self, job: _Job, engine: _Engine | None = None, id: str = "", credit: int = 0) -> None:
        self._job = job
        self._engine = engine
        self._id = id
        self._credit = credit
        self._read = 0  # chunks not yet given back as credit
        self._over = False

    def __aiter__(self) -> Stream[T]:
        return self

    async def __anext__(self) -> T:
        if self._over:
            raise StopAsyncIteration
        try:
            item: Any = await self._job.items.get()
        except BaseException:
            self._close()
            raise
        match item:
            case None:
                raise StopAsyncIteration
            case VoxCPMError():
                self._over = True
                raise item
            case AudioChunk():
                self._give_credit()
            case Finished() | Piece(last=True) | Stats():
                self._over = True
        return cast(T, item)

    async def aclose(self) -> None:
        self._close()

    def __del__(self) -> None:
        if not self._over and self._engine:
            self._engine.cancel_from_anywhere(self._id)

    def _close(self) -> None:
        if self._over:
            return
        self._over = True
        self._job.items.put_nowait(None)  # wakes a reader in another task
        if self._engine:
            self._engine.cancel(self._id)

    def _give_credit(self) -> None:
        self._read += 1
        if self._engine and self._read * 2 >= self._credit:  # in halves: few messages, and the engine never runs dry
            self._engine.post(self._id, Credit(self._id, self._read))
            self._read = 0


@dataclass(slots=True, eq=False)
class _Job:
    """The letter box of a request or codec job. Bounded by its credit, or by the length of what is coded."""

    name: str
    items: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    spoke: bool = False

    def fail(self, error: VoxCPMError) -> _Job:
        self.items.put_nowait(error)
        return self


class _Engine:
    """One engine: its handle, what it is busy with, and the task that routes its reports."""

    def __init__(self, handle: Handle, on_lost: Callable[[], None]) -> None:
        self.handle = handle
        self.info: ModelInfo | None = None
        self.jobs: dict[str, _Job] = {}
        self.alive = False
        self._on_lost = on_lost
        self._dispatcher: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self.info = await self.handle.start()
        self._loop = asyncio.get_running_loop()
        self.alive = True
        self._dispatcher = asyncio.create_task(self._dispatch(), name=f"reports of {self.handle.name}")

    def post(self, id: str, command: Command) -> None:
        """Say something about a job, unless it has ended."""
        if id in self.jobs:
            self.handle.post(command)

    def cancel(self, id: str) -> None:
        if self.jobs.pop(id, None):
            self.handle.post(Cancel(id))

    def cancel_from_anywhere(self, id: str) -> None:
        """For finalizers: they run in any thread, and after the loop's end too."""
        if self._loop and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # closed just now
                self._loop.call_soon_threadsafe(self.cancel, id)

    async def close(self) -> None:
        self.alive = False
        await self.handle.close()
        if self._dispatcher:
            await self._dispatcher

    async def _dispatch(self) -> None:
        try:
            async with contextlib.aclosing(self.handle.reports()) as batches:
                async for reports in batches:
                    for report in reports:
                        self._route(report)
        except Exception:
            logger.exception("the reports of %s cannot be read", self.handle.name)
        finally:
            self.alive = False
            for job in self.jobs.values():
                job.fail(_aborted() if job.spoke else _lost())
            self.jobs.clear()
            self._on_lost()

    def _route(self, report: Report) -> None:
        """To the job it is about. A job that is not there was cancelled meanwhile."""
        match report:
            case Began(id, item) | Coded(id, Piece(last=False) as item):
                job = self.jobs.get(id)
            case Spoke(id, item):
                job = self.jobs.get(id)
                if job:
                    job.spoke = True
            case Ended(id, item) | Coded(id, item) | Statistics(id, item):
                job = self.jobs.pop(id, None)
            case Failed(id):
                item = report.error()
                job = self.jobs.pop(id, None)
            case _:
                raise TypeError(f"{type(report).__name__} comes at the start only")
        if job:
            job.items.put_nowait(item)


def _lost() -> Unavailable:
    return Unavailable("no engine can serve this now; try again", retry_after=RETRY_SECONDS)


def _aborted() -> Aborted:
    return Aborted("the engine was lost after audio was sent; what was sent is good, ask again for the rest")
