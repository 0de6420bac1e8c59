"""Engines on a Ray cluster of several nodes, all of them on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from support.doubles.fake_engine import MakeFake, NotePid, refuse_to_start, request
from support.doubles.pools import everything, indexes_of, steps_reach
from support.engines.ray_nodes import RayNodes, ray_nodes
from support.engines.recorded_stats import RecordStats, recorded_stats
from support.engines.voice_parts import latents_of
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import StartupError, VoxCPMError
from voxcpm_grpc.events import AudioChunk, Event, Finished
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.ray.engine import RayEngine
from voxcpm_grpc.pool.ray.engines import RayEngines
from voxcpm_grpc.request import Role
from voxcpm_grpc.settings.schema import Settings

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOTS = 2  # of each engine
SILENCE = 10.0  # seconds: no process that runs is kept from its sign of life for so long


@pytest.fixture(scope="module")
def nodes():
    with pytest.MonkeyPatch.context() as patch:  # before Ray is imported here, for that is when it reads them
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", uuid.uuid4().hex)
        with ray_nodes() as nodes:
            nodes.add(2)
            yield nodes


@contextlib.asynccontextmanager
async def pool_on(nodes: RayNodes, make: MakeFake | RecordStats, **ray: object) -> AsyncIterator[EnginePool]:
    supervision = {"silence_seconds": SILENCE, "step_seconds": HANG_SECONDS}
    settings = {"ray": {"address": nodes.address, **ray}, "supervision": supervision}
    engines = RayEngines(make, Settings.model_validate(settings))
    pool = EnginePool(engines, engines.autoscale)
    try:
        await pool.start()
        yield pool
    finally:
        await pool.close()


async def engines_are(pool: EnginePool, wanted: int) -> None:
    await until(lambda: sum(replica.ready for replica in pool.replicas) == wanted)


async def outcome(stream) -> list[Event] | VoxCPMError:
    try:
        return await everything(stream)
    except VoxCPMError as error:
        return error


def is_whole(events: list[Event] | VoxCPMError, steps: int, *, first: int = 0) -> bool:
    """True if the events are all chunks of a request from `first` on, in order, and its end."""
    if isinstance(events, VoxCPMError):
        return False
    samples = [
        one for event in events if isinstance(event, AudioChunk) for one in np.split(event.samples, event.chunks)
    ]
    wanted = list(range(first, steps))
    right = all((one == index).all() for one, index in zip(samples, wanted, strict=False))
    return indexes_of(events) == wanted and right and isinstance(events[-1], Finished)


async def test_two_nodes_serve(nodes, tmp_path):
    make = RecordStats(MakeFake(slots=SLOTS), tmp_path)
    async with pool_on(nodes, make, min_engines=2) as pool:
        results = await asyncio.gather(*(everything(pool.generate(request(f"r{n}", 20 + n))) for n in range(20)))
        assert all(is_whole(events, 20 + n) for n, events in enumerate(results))
        before = steps_by_engine(tmp_path)
        assert len(before) == 2
        assert min(before) > 20
        waveform = np.repeat(np.arange(4000, dtype=np.float32), 320)  # 5 MB, which go through Ray's object store
        latents = latents_of(await pool.encode(waveform, Role.REFERENCE))
        assert np.array_equal(latents[:, 0, 0], np.arange(4000))
        before = sum(steps_by_engine(tmp_path))
        slow = pool.generate(request("slow", 64), window=8)
        await anext(slow)
        await steps_reach(lambda: sum(steps_by_engine(tmp_path)), before + 1 + 8)  # as long as the test does not read
        assert is_whole(await everything(slow), 64)


def steps_by_engine(folder: Path) -> list[int]:
    return [recorded_stats(folder, int(file.name)).steps for file in folder.iterdir() if file.name.isdigit()]


@pytest.mark.parametrize(("lost", "steps"), [("process", 150), ("node", 600)])
async def test_a_loss_under_load(nodes, tmp_path, lost, steps):
    """All calls move to another engine or continue, and the engine is replaced."""
    make = MakeFake(step_seconds=0.005, slots=SLOTS, before=NotePid(tmp_path))
    async with pool_on(nodes, make, min_engines=2) as pool:
        heard = [pool.generate(request(f"heard-{n}", steps)) for n in range(2 * SLOTS)]
        for stream in heard:
            await anext(stream)
            await anext(stream)
        waiting = [pool.generate(request(f"waiting-{n}", 50)) for n in range(2 * SLOTS)]
        if lost == "process":
            os.kill(min(int(path.name) for path in tmp_path.iterdir()), signal.SIGKILL)
        else:
            killing = asyncio.create_task(asyncio.to_thread(nodes.kill, 0))
            await engines_are(pool, 1)
            await killing
        ends = await asyncio.gather(*map(outcome, heard), *map(outcome, waiting))
        assert sum(is_whole(end, steps, first=1) for end in ends) == 2 * SLOTS
        assert pool.continuations >= SLOTS
        assert sum(is_whole(end, 50) for end in ends) == 2 * SLOTS
        if lost == "node":
            assert sum(replica.ready for replica in pool.replicas) == 1, "there is no room for another one"
            nodes.add()
        await engines_are(pool, 2)
        assert is_whole(await outcome(pool.generate(request("after", 5))), 5)


async def test_letters_that_cannot_be_sent_cost_the_engine_and_nobody_waits_for_it(nodes, monkeypatch, caplog):
    call, failures = RayEngine._call, []

    def fails_once(handle: RayEngine, method: str, *arguments: object, **options: object) -> object:
        if method == "post" and any(arguments) and not failures:
            failures.append(arguments)
            raise ValueError("no such command")
        return call(handle, method, *arguments, **options)

    monkeypatch.setattr(RayEngine, "_call", fails_once)
    async with pool_on(nodes, MakeFake(slots=SLOTS)) as pool:
        assert is_whole(await outcome(pool.generate(request("lost", 5))), 5), "it waits for the next engine"
        assert "no such command" in caplog.text
        await engines_are(pool, 1)
        assert is_whole(await outcome(pool.generate(request("after", 5))), 5)


async def test_engines_come_with_the_load_and_go_with_it(nodes, tmp_path):
    may_continue = tmp_path / "may continue"
    make = MakeFake(step_seconds=0.02, slots=SLOTS)
    async with pool_on(nodes, make, max_engines=2, grow_seconds=0.3, shrink_seconds=1.0) as pool:
        streams = [pool.generate(request(f"s{n}", 130, f"after {may_continue}")) for n in range(2 * SLOTS)]
        await engines_are(pool, 2)
        assert is_whole(await outcome(pool.generate(request("new", 5))), 5), "the first engine has no slot for it"
        may_continue.touch()
        assert all(is_whole(end, 130) for end in await asyncio.gather(*map(outcome, streams)))
        await engines_are(pool, 1)


async def test_an_engine_that_cannot_start_says_why(nodes):
    with pytest.raises(StartupError, match=r"model.safetensors is missing"):
        async with pool_on(nodes, MakeFake(before=refuse_to_start)):
            pass
