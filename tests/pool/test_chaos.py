"""Three engines with the tiny model under load: one is killed, one stopped, one poisoned and one out of memory."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.checkpoints import TINY
from support.engines import mixed_requests
from support.fragile_engine import POISONED, Fragile
from support.pools import patient
from support.recorded_stats import RecordStats, recorded_stats
from support.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import Aborted, Internal, Unavailable, VoxCPMError
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.handle import ProcessHandle
from voxcpm_grpc.request import Admitted, AudioChunk, Finished, Request, Stats

CALLERS = 6
TOLERANCE = 1e-4
SILENCE = 10.0  # seconds: no process that runs is kept from its sign of life for so long


@dataclass
class Speech:
    """All that came of a request."""

    request: Request
    audio: list[np.ndarray] = field(default_factory=list)
    finished: Finished | None = None
    error: VoxCPMError | None = None

    @property
    def waveform(self) -> np.ndarray:
        return np.concatenate([np.zeros(0, np.float32), *self.audio])

    def check(self, expected: np.ndarray) -> None:
        """It is whole, or cut off with the status that tells callers what to do. What there is of it is right."""
        heard = self.waveform
        np.testing.assert_allclose(heard, expected[: len(heard)], atol=TOLERANCE, rtol=0)
        if self.error is None:
            assert self.finished is not None
            assert len(heard) == len(expected)
        else:
            assert type(self.error) is (Aborted if len(heard) else Unavailable), self.error


@dataclass
class World:
    """The pool, its engines by name, what every request should sound like, and what all of them have become."""

    pool: EnginePool
    handles: dict[str, ProcessHandle]
    full: dict[str, Path]
    recorded: Path
    expected: dict[str, np.ndarray] = field(default_factory=dict)
    speeches: list[Speech] = field(default_factory=list)
    numbers: count = field(default_factory=count)

    async def speak(self, request: Request) -> Speech:
        """One request under an id of its own. Fails if it does not end."""
        speech = Speech(request)
        stream = self.pool.generate(replace(request, id=f"{request.id}-{next(self.numbers)}"))
        async with asyncio.timeout(HANG_SECONDS), contextlib.aclosing(stream):
            try:
                async for event in stream:
                    match event:
                        case AudioChunk():
                            assert event.index == len(speech.audio)
                            speech.audio.append(event.samples)
                        case Finished():
                            speech.finished = event
            except VoxCPMError as error:
                speech.error = error
        return speech

    async def call(self, first: int) -> None:
        """A caller who never has enough. One that is refused comes back a little later."""
        requests = mixed_requests()
        for number in count(first):
            speech = await self.speak(requests[number % len(requests)])
            self.speeches.append(speech)
            if speech.error:
                await asyncio.sleep(0.1)

    def signal(self, name: str, how: signal.Signals) -> None:
        pid = self.handles[name].pid
        assert pid
        os.kill(pid, how)

    def stats(self, name: str) -> Stats:
        return recorded_stats(self.recorded, self.handles[name].pid)

    def alive(self, name: str) -> bool:
        return any(place.alive and place.name == name for place in self.pool.places)

    def working(self) -> list[str]:
        """The engines that something was given to."""
        return [place.name for place in self.pool.places if place.jobs]

    async def lost_and_healed(self, name: str) -> None:
        """An engine is noticed to be lost, and followed by another."""
        await until(lambda: not self.alive(name))
        await until(lambda: self.alive(name))

    async def all_work(self) -> None:
        """Every engine makes steps."""
        before = {name: self.stats(name).steps for name in self.handles}
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                await asyncio.sleep(0.2)
                if all(self.stats(name).steps > steps + 20 for name, steps in before.items()):
                    return


@contextlib.asynccontextmanager
async def world(folder: Path):
    names = ("a", "b", "c")
    full, handles, recorded = {name: folder / name for name in names}, {}, folder / "recorded"
    recorded.mkdir()

    def launch(name: str) -> ProcessHandle:
        handles[name] = ProcessHandle(RecordStats(Fragile(TINY, full[name]), recorded), name=name)
        return handles[name]

    settings = patient(silence_seconds=SILENCE, restart_seconds=0.5)
    pool = EnginePool([partial(launch, name) for name in names], settings)
    await pool.start()
    try:
        yield World(pool, handles, full, recorded)
    finally:
        await pool.close()


@pytest.mark.timeout(600)  # seven engines are started, one after the other
async def test_chaos(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    family, files = children(), psutil.Process().num_fds()
    async with world(tmp_path) as w:
        for speech in await asyncio.gather(*map(w.speak, mixed_requests())):
            assert speech.finished, "nothing disturbs them yet"
            w.expected[speech.request.id] = speech.waveform
        assert len({waveform.tobytes() for waveform in w.expected.values()}) == len(w.expected)
        await lose_one_before_it_is_heard(w)

        callers = [asyncio.create_task(w.call(number)) for number in range(CALLERS)]
        try:
            await w.all_work()
            await disturb(w)
            await w.all_work()
            await until(lambda: sum(speech.error is None for speech in w.speeches) > 3 * CALLERS)
        finally:
            for caller in callers:
                caller.cancel()
            await asyncio.wait(callers)
        assert not [error for caller in callers if not caller.cancelled() and (error := caller.exception())]

        for speech in w.speeches:
            speech.check(w.expected[speech.request.id])
        assert not w.working()
        async with asyncio.timeout(HANG_SECONDS):
            while any(w.stats(name).slots_used for name in w.handles):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert sum(place.supervisor.restarts for place in w.pool.places) == 4
    assert children() <= family
    assert list(temporary.iterdir()) == []
    assert psutil.Process().num_fds() <= files + 2, "sockets or pipes are left"


async def lose_one_before_it_is_heard(w: World) -> None:
    """What is spoken again sounds as if nothing had happened."""
    request = mixed_requests()[2]
    undisturbed = await w.speak(request)
    for name in w.handles:
        w.signal(name, signal.SIGSTOP)
    speaking = asyncio.create_task(w.speak(request))
    await until(w.working)
    [given] = w.working()
    for name in w.handles:
        w.signal(name, signal.SIGKILL if name == given else signal.SIGCONT)
    speech = await speaking
    assert speech.finished
    assert undisturbed.finished
    np.testing.assert_array_equal(speech.waveform, undisturbed.waveform)
    np.testing.assert_array_equal(speech.finished.latents, undisturbed.finished.latents)
    await until(lambda: w.alive(given))


async def disturb(w: World) -> None:
    """Everything that may befall an engine, one after the other."""
    before = {place.name: len(place.jobs) for place in w.pool.places}
    stream = w.pool.generate(replace(mixed_requests()[3], id="heard"), lead_chunks=1)
    [victim] = [place.name for place in w.pool.places if len(place.jobs) > before[place.name]]
    async with asyncio.timeout(HANG_SECONDS):
        assert isinstance(await anext(stream), Admitted)
        assert isinstance(await anext(stream), AudioChunk)
        w.signal(victim, signal.SIGKILL)
        with pytest.raises(Aborted):
            async for _ in stream:
                pass
    await w.lost_and_healed(victim)

    w.signal("b", signal.SIGSTOP)
    unheard = [asyncio.create_task(w.speak(request)) for request in mixed_requests()]
    await until(lambda: "b" in w.working())  # some were given to it
    await w.lost_and_healed("b")
    for speech in await asyncio.gather(*unheard):
        speech.check(w.expected[speech.request.id])
        assert not isinstance(speech.error, Unavailable), "another engine was there for those whom nobody had heard"

    poisoned = await w.speak(replace(mixed_requests()[0], conditioning=POISONED))
    assert isinstance(poisoned.error, Internal)
    assert not poisoned.audio
    assert all(w.alive(name) for name in "abc")

    w.full["c"].touch()
    await w.lost_and_healed("c")
    assert not w.full["c"].exists()


def children() -> set[int]:
    """All but the one with which Python watches over what its processes share."""
    found = psutil.Process().children(recursive=True)
    return {child.pid for child in found if "resource_tracker" not in " ".join(child.cmdline())}
