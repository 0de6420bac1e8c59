"""The front's only door to its engines: pick one, reserve, hand over what it says, and outlive its loss."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np

from voxcpm_grpc.errors import Aborted, InvalidRequest, StartupError, Unavailable
from voxcpm_grpc.ipc.messages import Decode, Encode, Submit
from voxcpm_grpc.pool.background import close_all
from voxcpm_grpc.pool.balancer import Balancer, prefix_of, work_of, work_of_coding
from voxcpm_grpc.pool.engine_call import EngineCall, Stream
from voxcpm_grpc.pool.handle import Launch, processes
from voxcpm_grpc.pool.replica import Replica
from voxcpm_grpc.request import CodecChunk, Event, ModelInfo, Request
from voxcpm_grpc.settings.schema import EngineSettings, SupervisionSettings

RETRY_SECONDS = 1.0
LEAD_CHUNKS = 128  # about 20 s of speech


class EnginePool:
    """Engines that serve the same model. Made and used on one event loop.

    Every call goes to the engine with the least work left. When an engine is lost, what it did without having
    delivered anything goes to another one, with the same seed; what had been heard ends with Aborted, and what nobody
    is left for with Unavailable. Lost engines are followed by new ones; see `supervisor`.
    """

    def __init__(self, launches: Iterable[Launch], supervision: SupervisionSettings | None = None) -> None:
        self._supervision = supervision or SupervisionSettings()
        self._places = [self._place(launch) for launch in launches]
        self._chooser: Balancer[Replica] = Balancer()
        self._info: ModelInfo | None = None
        self._numbers = count()
        self._name = uuid.uuid4().hex[:8]  # an engine may serve several pools
        self._changed = asyncio.Event()
        self._over = asyncio.Event()
        self._closing = False

    @classmethod
    def of_processes(
        cls,
        directory: Path,
        name: str,
        engines: Mapping[str, EngineSettings],
        supervision: SupervisionSettings | None = None,
        *,
        log_level: str = "info",
    ) -> EnginePool:
        """Engines, each in a process of its own, for the checkpoint in `directory`. Starts with `start`."""
        return cls(processes(directory, name, engines, log_level).values(), supervision)

    async def start(self) -> None:
        """Wait until every engine is ready. Raises StartupError, with nothing left running, if one cannot start."""
        try:
            async with asyncio.TaskGroup() as group:
                for place in self._places:
                    group.create_task(place.supervisor.start())
        except BaseException as error:
            await self.close()
            raise (error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error) from None

    def add(self, launch: Launch) -> Replica:
        """Make room for another engine. It joins when it is ready; one that cannot start is tried again.

        Raises StartupError once the pool is closed.
        """
        if self._closing:
            raise StartupError("the pool is closed; nobody would stop an engine that is added now")
        place = self._place(launch)
        self._places.append(place)
        place.supervisor.begin()
        return place

    async def remove(self, place: Replica, *, seconds: float) -> None:
        """Take a place out: it is chosen no more, ends what it does within `seconds`, and its engine stops.

        If its engine cannot be stopped, this raises, and may be called again.
        """
        place.leaving = True
        self._on_change(place)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await place.idle()
        await place.close()
        if place in self._places:
            self._places.remove(place)
        self._on_change(place)

    @property
    def places(self) -> tuple[Replica, ...]:
        """Where engines are or will be again."""
        return tuple(self._places)

    @property
    def info(self) -> ModelInfo:
        """The model that is served. Known once started."""
        assert self._info is not None
        return self._info

    @property
    def healthy(self) -> bool:
        """Whether an engine is there to take calls."""
        return any(place.alive for place in self._places)

    @property
    def waiting(self) -> int:
        """Requests that no engine has begun so far."""
        return sum(not job.began for place in self._places for job in place.jobs.values() if job.is_stream)

    async def health(self) -> AsyncIterator[bool]:
        """Whether an engine is there to take calls: now, and again whenever that changes."""
        told: bool | None = None
        while True:
            changed = self._changed
            if (now := self.healthy) is not told:
                told = now
                yield now
            await changed.wait()

    async def closed_or_given_up(self) -> None:
        """Wait until there is neither an engine nor any attempt to start one."""
        await self._over.wait()

    def generate(self, request: Request, *, lead_chunks: int = LEAD_CHUNKS) -> Stream[Event]:
        """Speak a request: Admitted, then AudioChunks in order, then Finished.

        The engine is picked, reserved and told now; errors are raised by iteration. At most `lead_chunks` chunks are
        made ahead of the reader. Closing the stream (see contextlib.aclosing) or dropping it cancels the request.
        """
        credit = max(1, lead_chunks)
        work = work_of(request, self.info)
        job = EngineCall(
            request.id,
            lambda id: Submit(replace(request, id=id), credit, work),
            work=work,
            prefix=prefix_of(request),
            credit=credit,
        )
        if any(other.name == job.name and other.is_stream for place in self._places for other in place.jobs.values()):
            error = InvalidRequest(f"request id {request.id!r} is in use; choose another", field="request_id")
            return Stream(job.fail(error))
        return self._open(job)

    async def encode(self, waveform: np.ndarray, *, pad_left: bool) -> np.ndarray:
        """Latents float32 [patches, P, D] of a mono waveform float32 [samples] at the model's input rate.

        Zeros fill the first (`pad_left`, for prompts) or the last patch (for references).
        """
        work = work_of_coding(len(waveform) // self.info.samples_per_patch)
        job = EngineCall("encode", lambda id: Encode(id, waveform, pad_left), work=work, whole=True)
        stream: Stream[CodecChunk] = self._open(job)
        async with contextlib.aclosing(stream) as pieces:
            arrays = [piece.array async for piece in pieces if piece.array.size]
        return np.concatenate(arrays) if arrays else self._no_latents()

    async def decode(self, latents: np.ndarray) -> AsyncGenerator[np.ndarray]:
        """Audio float32 [samples] at the output rate, piece by piece, of latents [patches, P, D]."""
        job = EngineCall("decode", lambda id: Decode(id, latents), work=work_of_coding(len(latents)))
        stream: Stream[CodecChunk] = self._open(job)
        async with contextlib.aclosing(stream) as pieces:
            async for piece in pieces:
                if piece.array.size:
                    yield piece.array

    async def close(self) -> None:
        """Stop all engines; what is still under way ends as if they were lost."""
        self._closing = True
        await close_all(place.close() for place in self._places)
        self._over.set()

    def _place(self, launch: Launch) -> Replica:
        return Replica(
            launch, self._supervision, check=self._check, on_change=self._on_change, on_orphans=self._on_orphans
        )

    def _open(self, job: EngineCall) -> Stream:
        self._give(job, self._living())
        return Stream(job)

    def _give(self, job: EngineCall, places: list[Replica]) -> None:
        if places:
            self._chooser.choose(places, job.prefix).give(self._id(job.name), job)
        else:
            job.fail(_lost())

    def _id(self, name: str) -> str:
        """One that never returns: what an engine still says about a cancelled request must not reach its successor."""
        return f"{name}.{self._name}.{next(self._numbers)}"

    def _living(self) -> list[Replica]:
        return [] if self._closing else [place for place in self._places if place.alive]

    def _no_latents(self) -> np.ndarray:
        return np.zeros((0, self.info.patch_size, self.info.latent_dim), np.float32)

    def _check(self, info: ModelInfo) -> None:
        if self._info is None:
            self._info = info
        elif info.fingerprint != self._info.fingerprint:
            raise StartupError("the engines serve different models; give all of them the same checkpoint")

    def _on_change(self, place: Replica) -> None:
        if not place.alive:
            self._chooser.forget(place)
        self._changed.set()
        self._changed = asyncio.Event()
        if self._places and all(place.given_up for place in self._places):
            self._over.set()

    def _on_orphans(self, place: Replica, jobs: list[EngineCall]) -> None:
        others = [other for other in self._living() if other is not place]
        for job in jobs:
            if job.spoke:
                job.fail(_aborted())
            elif job.losses > 0:
                job.losses -= 1
                self._give(job, others or self._living())
            else:
                job.fail(_lost())


def _lost() -> Unavailable:
    return Unavailable("no engine can serve this now; try again", retry_after=RETRY_SECONDS)


def _aborted() -> Aborted:
    return Aborted("the engine was lost after audio was sent; what was sent is good, ask again for the rest")
