"""Pools of engines with the tiny model, callers that never stop, and checks of all that came of their requests."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.doubles.pools import patient
from support.engines.checkpoints import TINY
from support.engines.fragile_engine import Fragile
from support.engines.recorded_stats import RecordStats, recorded_stats
from support.engines.tiny import mixed_requests
from support.engines.voice_parts import latents_of
from support.servers.processes import children
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import Aborted, Reason, Unavailable, VoxCPMError
from voxcpm_grpc.events import AudioChunk, Finished
from voxcpm_grpc.pool.engine_pool import WINDOW_CHUNKS, EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.request import Request, Stats

TOLERANCE = 1e-4
AHEAD = 2  # chunks that are made before a caller who listens has read the one before
READING_SECONDS = 0.1  # from one chunk to the next: callers that listen keep engines from computing all the time
SILENCE = 10.0  # seconds: no process that runs is kept from its sign of life for so long


@dataclass
class Speech:
    """All that came of a request."""

    request: Request
    audio: list[np.ndarray] = field(default_factory=list)
    chunks: int = 0  # an event may have several
    finished: Finished | None = None
    error: VoxCPMError | None = None

    @property
    def waveform(self) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.float32), *self.audio])

    def check(self, expected: np.ndarray) -> None:
        """It is whole, or cut off with the status that tells callers what to do. What there is of it is right.

        It is cut off only if no engine was left, or if two engines in a row ended while it was tried.
        """
        heard = self.waveform
        np.testing.assert_allclose(heard, expected[: len(heard)], atol=TOLERANCE, rtol=0)
        if self.error is None:
            assert self.finished is not None
            assert len(heard) == len(expected)
        elif self.error.reason is not Reason.REQUEST_ENDED_ENGINES:
            assert type(self.error) is (Aborted if len(heard) else Unavailable), self.error


@dataclass
class World:
    """The pool, its engines by name, what every request should sound like, and what all of them have become."""

    pool: EnginePool
    processes: dict[str, EngineProcess]
    full: dict[str, Path]
    recorded: Path
    expected: dict[str, np.ndarray] = field(default_factory=dict)
    speeches: list[Speech] = field(default_factory=list)
    numbers: count = field(default_factory=count)

    async def speak(self, request: Request, pause: float = 0.0) -> Speech:
        """One request under an id of its own, whose chunks are read with pauses. Fails if it does not end."""
        speech = Speech(request)
        window = AHEAD if pause else WINDOW_CHUNKS
        stream = self.pool.generate(replace(request, id=f"{request.id}-{next(self.numbers)}"), window=window)
        async with asyncio.timeout(HANG_SECONDS), contextlib.aclosing(stream):
            try:
                async for event in stream:
                    match event:
                        case AudioChunk():
                            assert event.index == speech.chunks
                            speech.audio.append(event.samples)
                            speech.chunks = event.end
                            await asyncio.sleep(pause)
                        case Finished():
                            speech.finished = event
            except VoxCPMError as error:
                speech.error = error
        return speech

    async def learn(self) -> None:
        """Speak every request once, undisturbed: what it should sound like."""
        for speech in await asyncio.gather(*map(self.speak, mixed_requests())):
            assert speech.finished, "nothing disturbs them yet"
            self.expected[speech.request.id] = speech.waveform
        assert len({waveform.tobytes() for waveform in self.expected.values()}) == len(self.expected)

    @contextlib.asynccontextmanager
    async def load(self, callers: int) -> AsyncIterator[None]:
        """Callers that speak as long as the block runs. Everything that they got is checked at its end."""
        tasks = [asyncio.create_task(self.call(number)) for number in range(callers)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        assert not [error for task in tasks if not task.cancelled() and (error := task.exception())]
        for speech in self.speeches:
            speech.check(self.expected[speech.request.id])
        assert not self.working()
        async with asyncio.timeout(HANG_SECONDS):
            while any(self.stats(name).slots_used for name in self.processes):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def call(self, first: int) -> None:
        """A caller who never has enough. One that is refused comes back a little later."""
        requests = mixed_requests()
        for number in count(first):
            speech = await self.speak(requests[number % len(requests)], READING_SECONDS)
            self.speeches.append(speech)
            if speech.error:
                await asyncio.sleep(0.1)

    def signal(self, name: str, how: signal.Signals) -> None:
        pid = self.processes[name].pid
        assert pid
        os.kill(pid, how)

    def stats(self, name: str) -> Stats:
        return recorded_stats(self.recorded, self.processes[name].pid)

    def alive(self, name: str) -> bool:
        return any(replica.ready and replica.name == name for replica in self.pool.replicas)

    def working(self) -> list[str]:
        """The engines that something was given to."""
        return [replica.name for replica in self.pool.replicas if replica.calls]

    async def lost_and_healed(self, name: str) -> None:
        """An engine is noticed to be lost, and followed by another."""
        await until(lambda: not self.alive(name))
        await until(lambda: self.alive(name))

    async def all_work(self) -> None:
        """Every engine makes steps."""
        before = {name: self.stats(name).steps for name in self.processes}
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                await asyncio.sleep(0.2)
                if all(self.stats(name).steps > steps + 20 for name, steps in before.items()):
                    return


@contextlib.asynccontextmanager
async def world(folder: Path, names: str) -> AsyncIterator[World]:
    """Engines of these names, each a letter. When the block ends they leave no process, file or socket behind."""
    temporary = folder / "temporary"
    temporary.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        family, files = children(), psutil.Process().num_fds()
        async with _started(folder, names) as running:
            yield running
        assert children() <= family
        assert list(temporary.iterdir()) == []
        assert psutil.Process().num_fds() <= files + 2, "sockets or pipes are left"


@contextlib.asynccontextmanager
async def _started(folder: Path, names: str) -> AsyncIterator[World]:
    full, processes, recorded = {name: folder / name for name in names}, {}, folder / "recorded"
    recorded.mkdir()

    def launch(name: str) -> EngineProcess:
        processes[name] = EngineProcess(RecordStats(Fragile(TINY, full[name]), recorded), name=name)
        return processes[name]

    settings = patient(silence_seconds=SILENCE, restart_seconds=0.5)
    pool = EnginePool(LocalEngines({name: partial(launch, name) for name in names}, settings))
    await pool.start()
    try:
        yield World(pool, processes, full, recorded)
    finally:
        await pool.close()


async def lose_one_before_it_is_heard(w: World) -> None:
    """A retried segment gives the same audio as one that was not disturbed."""
    request = mixed_requests()[2]
    undisturbed = await w.speak(request)
    for name in w.processes:
        w.signal(name, signal.SIGSTOP)
    speaking = asyncio.create_task(w.speak(request))
    await until(w.working)
    [given] = w.working()
    for name in w.processes:
        w.signal(name, signal.SIGKILL if name == given else signal.SIGCONT)
    speech = await speaking
    assert speech.finished
    assert undisturbed.finished
    np.testing.assert_array_equal(speech.waveform, undisturbed.waveform)
    np.testing.assert_array_equal(latents_of(speech.finished.speech), latents_of(undisturbed.finished.speech))
    await until(lambda: w.alive(given))
