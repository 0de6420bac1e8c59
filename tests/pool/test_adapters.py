"""LoRA adapters of the engines of a pool: registration, turns that have chosen them, and engines that are lost."""

from __future__ import annotations

import asyncio
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.doubles.fake_engine import MakeFake, request, write_lora
from support.doubles.pools import Launcher, RecordedPool, everything, patient, pool_of, started
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_grpc import lora_files
from voxcpm_grpc.errors import (
    AlreadyExists,
    FailedPrecondition,
    Internal,
    InvalidRequest,
    NotFound,
    StartupError,
    Unavailable,
)
from voxcpm_grpc.events import AudioChunk
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines import supervisor
from voxcpm_grpc.request import Adapter

QUICK = patient(restart_seconds=0.2)


async def register(pool: EnginePool, name: str, directory: Path) -> Adapter:
    async with asyncio.timeout(HANG_SECONDS):
        return await pool.adapters.register(name, "file:somewhere", directory)


async def sound(pool: EnginePool, adapter: Adapter | None, id: str = "r", steps: int = 3) -> list[float]:
    """The value of each chunk of a request with an adapter."""
    events = await everything(pool.generate(request(id, steps, adapter=adapter)))
    made = [event for event in events if isinstance(event, AudioChunk)]
    return [float(chunk[0]) for event in made for chunk in np.split(event.samples, event.chunks)]


def names(pool: EnginePool) -> list[str]:
    return [adapter.name for adapter in pool.adapters.registered]


def read_by(pool: EnginePool) -> list[set[str]]:
    """The fingerprints of the adapters that each engine has read."""
    return [set(replica.adapters) for replica in pool.replicas]


async def engines_have(pool: EnginePool, *wanted: str) -> None:
    """Wait until all engines have read adapters with these fingerprints and no others."""
    await until(lambda: all(found == set(wanted) for found in read_by(pool)))


async def test_a_registered_adapter_speaks_on_every_engine(tmp_path):
    async with pool_of(MakeFake(), MakeFake()) as pool:
        anna = await register(pool, "anna", write_lora(tmp_path, 1000))
        assert (anna.name, anna.source, anna.directory) == ("anna", "file:somewhere", str(tmp_path))
        assert len(anna.fingerprint) == 32
        assert pool.adapters.registered == (anna,) and pool.adapters.find("anna") is anna
        assert read_by(pool) == [{anna.fingerprint}, {anna.fingerprint}]
        for number in range(4):  # equal engines take turns
            assert await sound(pool, anna, f"r{number}") == [1000, 1001, 1002]
        assert await sound(pool, None) == [0, 1, 2]
        assert all(stats.chunks for stats in pool.stats_by_engine().values())


async def test_an_unregistered_adapter_is_freed_when_no_turn_has_it(tmp_path):
    """Engines keep it for turns that have chosen it, even if its files are gone."""
    async with pool_of(MakeFake()) as pool:
        await register(pool, "anna", write_lora(tmp_path / "anna"))
        turn = pool.adapters.find("anna")
        await pool.adapters.unregister("anna")
        shutil.rmtree(tmp_path / "anna")
        assert names(pool) == []
        with pytest.raises(NotFound, match="'anna'; the server has none"):
            pool.adapters.find("anna")
        for number in range(2):
            assert await sound(pool, turn, f"r{number}") == [1000, 1001, 1002]
            assert read_by(pool) == [{turn.fingerprint}]
        other = replace(turn)
        del turn
        await engines_have(pool)
        with pytest.raises(FailedPrecondition, match="register it again"):
            await sound(pool, other)


async def test_a_request_that_outlives_its_turn_keeps_the_adapter(tmp_path):
    may_continue = tmp_path / "may continue"
    async with pool_of(MakeFake()) as pool:
        anna = await register(pool, "anna", write_lora(tmp_path / "anna"))
        call = pool.generate(request("r", 5, f"after {may_continue}", anna))
        await anext(call)
        del anna
        await pool.adapters.unregister("anna")
        may_continue.touch()
        events = await everything(call)
        assert [event.samples[0] for event in events if isinstance(event, AudioChunk)] == [1000 + i for i in range(5)]
        del call
        await engines_have(pool)


async def test_a_name_can_be_registered_again_while_turns_use_the_old_one(tmp_path):
    async with pool_of(MakeFake(), MakeFake()) as pool:
        old = await register(pool, "anna", write_lora(tmp_path / "old", 1000))
        await pool.adapters.unregister("anna")
        new = await register(pool, "anna", write_lora(tmp_path / "new", 2000))
        assert pool.adapters.find("anna") is new and old.fingerprint != new.fingerprint
        assert await sound(pool, old) == [1000, 1001, 1002]
        assert await sound(pool, new) == [2000, 2001, 2002]
        del old
        await engines_have(pool, new.fingerprint)
        assert names(pool) == ["anna"]


async def test_names_of_equal_content_share_it_until_the_last_one_is_unregistered(tmp_path):
    async with pool_of(MakeFake()) as pool:
        await register(pool, "anna", write_lora(tmp_path / "anna"))
        content = (await register(pool, "bert", write_lora(tmp_path / "bert"))).fingerprint
        assert names(pool) == ["anna", "bert"] and read_by(pool) == [{content}]
        await pool.adapters.unregister("anna")
        shutil.rmtree(tmp_path / "anna")
        for number in range(2):
            assert await sound(pool, pool.adapters.find("bert"), f"r{number}") == [1000, 1001, 1002]
            assert read_by(pool) == [{content}]
        await pool.adapters.unregister("bert")
        await engines_have(pool)


async def test_an_adapter_that_one_engine_refuses_stays_nowhere(tmp_path):
    async with pool_of(MakeFake(), MakeFake(loras_taken=False)) as pool:
        with pytest.raises(InvalidRequest, match="the LoRA adapter 'anna': it does not fit this model"):
            await register(pool, "anna", write_lora(tmp_path))
        assert names(pool) == []
        await engines_have(pool)


async def test_errors_of_a_registration(tmp_path):
    async with pool_of(MakeFake()) as pool:
        with pytest.raises(InvalidRequest, match="has no lora_config"):
            await register(pool, "anna", tmp_path / "missing")
        with pytest.raises(Internal) as caught:
            await register(pool, "anna", write_lora(tmp_path / "faulty", then="fault"))
        assert "secret" not in caught.value.message
        await register(pool, "anna", write_lora(tmp_path / "anna"))
        with pytest.raises(AlreadyExists, match="'anna' already"):
            await register(pool, "anna", write_lora(tmp_path / "anna"))
        with pytest.raises(NotFound, match="'bert'; the server has anna"):
            await pool.adapters.unregister("bert")
        assert await sound(pool, None) == [0, 1, 2]
    with pytest.raises(Unavailable):
        await register(pool, "bert", write_lora(tmp_path / "anna"))


async def test_streams_go_on_while_the_files_are_read(tmp_path):
    may_read = tmp_path / "may read"
    async with pool_of(MakeFake()) as pool:
        registering = asyncio.create_task(
            register(pool, "anna", write_lora(tmp_path / "anna", then=f"after {may_read}"))
        )
        assert len(await sound(pool, None, steps=300)) == 300
        assert names(pool) == [] and not registering.done()
        with pytest.raises(AlreadyExists):
            await register(pool, "anna", write_lora(tmp_path / "other"))
        may_read.touch()
        assert (await registering).name == "anna"
        assert names(pool) == ["anna"]


async def test_a_cancelled_registration_leaves_nothing_behind(tmp_path):
    may_read = tmp_path / "may read"
    async with pool_of(MakeFake()) as pool:
        registering = asyncio.create_task(
            register(pool, "anna", write_lora(tmp_path / "anna", then=f"after {may_read}"))
        )
        await sound(pool, None)
        registering.cancel()
        await asyncio.wait([registering])
        may_read.touch()
        bert = await register(pool, "bert", write_lora(tmp_path / "bert"))  # is read after it
        assert names(pool) == ["bert"]
        await engines_have(pool, bert.fingerprint)


async def test_an_engine_that_restarts_reads_the_adapters_that_requests_may_name(tmp_path):
    engine = Launcher([MakeFake()])
    async with started(engine, settings=QUICK) as pool:
        old = await register(pool, "anna", write_lora(tmp_path / "old", 1000))
        await pool.adapters.unregister("anna")
        new = await register(pool, "anna", write_lora(tmp_path / "new", 2000))
        engine.kill()
        await until(lambda: not pool.healthy)
        assert pool.adapters.registered == (new,) and read_by(pool) == [set()]
        await engines_have(pool, old.fingerprint, new.fingerprint)
        assert await sound(pool, new) == [2000, 2001, 2002]
        assert await sound(pool, old) == [1000, 1001, 1002]
        del old
        await engines_have(pool, new.fingerprint)


async def test_requests_go_to_another_engine_than_one_that_cannot_read_their_adapter_again(tmp_path):
    a, b = Launcher([MakeFake()], "a"), Launcher([MakeFake()], "b")
    async with started(a, b, settings=QUICK) as pool:
        anna = await register(pool, "anna", write_lora(tmp_path / "anna"))
        bert = await register(pool, "bert", write_lora(tmp_path / "bert", 5))
        shutil.rmtree(tmp_path / "anna")
        a.kill()
        await until(lambda: pool.replicas[0].adapters == (bert.fingerprint,))
        assert all(replica.ready for replica in pool.replicas)
        for number in range(4):
            assert await sound(pool, anna, f"a{number}") == [1000, 1001, 1002]
            assert await sound(pool, bert, f"b{number}") == [5, 6, 7]
        b.kill(signal.SIGSTOP)  # its streams last, so that the other engine has less work
        waiting = [pool.generate(request(f"w{number}", 3, "Hello." * 500, bert)) for number in range(2)]
        calls = [pool.generate(request(f"c{number}", 3, adapter=anna)) for number in range(8)]
        b.kill(signal.SIGCONT)
        for events in await asyncio.gather(*map(everything, (*waiting, *calls))):
            assert sum(isinstance(event, AudioChunk) for event in events) == 3
        b.kill()
        await until(lambda: pool.replicas[1].adapters == (bert.fingerprint,))
        with pytest.raises(FailedPrecondition, match=r"no engine has the LoRA adapter.* register it again"):
            await sound(pool, anna)
        assert await sound(pool, None) == [0, 1, 2]
        assert names(pool) == ["anna", "bert"]
        await pool.adapters.unregister("anna")
        again = await register(pool, "anna", write_lora(tmp_path / "anna", 7))
        assert await sound(pool, again) == [7, 8, 9]


async def test_files_that_were_changed_after_the_registration_are_not_read(tmp_path):
    engine = Launcher([MakeFake()])
    async with started(engine, settings=QUICK) as pool:
        anna = await register(pool, "anna", write_lora(tmp_path, 1000))
        write_lora(tmp_path, 2000)
        engine.kill()
        await until(lambda: not pool.healthy)
        with pytest.raises(FailedPrecondition, match="register it again"):
            await sound(pool, anna)
        write_lora(tmp_path, 1000)  # as they were
        assert await sound(pool, anna) == [1000, 1001, 1002]


async def test_requests_prefer_an_engine_that_has_read_their_adapter(tmp_path):
    """The other one reads it in a moment, and serves other requests meanwhile."""
    a, b, may_read = Launcher([MakeFake()], "a"), Launcher([MakeFake()], "b"), tmp_path / "may read"
    async with started(a, b, settings=QUICK) as pool:
        may_read.touch()
        anna = await register(pool, "anna", write_lora(tmp_path / "anna", then=f"after {may_read}"))
        may_read.unlink()
        a.kill()
        await until(lambda: not pool.replicas[0].ready)
        await until(lambda: pool.replicas[0].ready)
        for number in range(4):
            assert await sound(pool, anna, f"r{number}") == [1000, 1001, 1002]
            assert await sound(pool, None, f"p{number}") == [0, 1, 2]
        assert read_by(pool) == [set(), {anna.fingerprint}]
        may_read.touch()
        await engines_have(pool, anna.fingerprint)


async def test_a_request_waits_in_an_engine_that_has_yet_to_read_its_adapter(tmp_path):
    engine, may_read = Launcher([MakeFake()]), tmp_path / "may read"
    async with started(engine, settings=QUICK) as pool:
        may_read.touch()
        anna = await register(pool, "anna", write_lora(tmp_path / "anna", then=f"after {may_read}"))
        may_read.unlink()
        engine.kill()
        await until(lambda: not pool.healthy)
        await until(lambda: pool.healthy)
        speaking = asyncio.create_task(sound(pool, anna, "a"))
        assert await sound(pool, None, "b") == [0, 1, 2]
        assert not speaking.done()
        may_read.touch()
        assert await speaking == [1000, 1001, 1002]


async def test_an_engine_that_is_lost_during_a_registration_does_not_stop_it(tmp_path, monkeypatch):
    a, b, may_read = Launcher([MakeFake()], "a"), Launcher([MakeFake()], "b"), tmp_path / "may read"
    directory = write_lora(tmp_path / "anna", then=f"after {may_read}")
    async with started(a, b, settings=QUICK) as pool:
        registering = asyncio.create_task(register(pool, "anna", directory))
        a.kill()
        await until(lambda: not pool.replicas[0].ready)
        may_read.touch()
        anna = await registering
        await engines_have(pool, anna.fingerprint)
        may_read.unlink()
        monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", NEVER_SECONDS)
        registering = asyncio.create_task(register(pool, "bert", directory))
        a.kill()
        b.kill()
        with pytest.raises(Unavailable):
            await registering
        assert pool.adapters.registered == (anna,)


async def test_an_engine_that_is_added_later_has_the_adapters(tmp_path):
    async with pool_of(MakeFake()) as pool:
        anna = await register(pool, "anna", write_lora(tmp_path))
        pool.add(Launcher([MakeFake()], "later"))
        await until(lambda: len(pool.replicas) == 2 and all(replica.ready for replica in pool.replicas))
        await engines_have(pool, anna.fingerprint)
        await pool.remove(pool.replicas[0], seconds=HANG_SECONDS)
        assert await sound(pool, anna) == [1000, 1001, 1002]


async def test_adapters_of_the_settings_are_registered_and_stay_unregistered(tmp_path):
    entry = f"anna={write_lora(tmp_path / 'anna', 1000)}"
    engine = Launcher([MakeFake(loras=(entry,))])
    async with started(engine, settings=QUICK, loras=[entry]) as pool:
        [anna] = pool.adapters.registered
        assert anna == lora_files.adapter_of(entry) and anna.name == "anna"
        await engines_have(pool, anna.fingerprint)
        assert await sound(pool, anna) == [1000, 1001, 1002]
        with pytest.raises(AlreadyExists):
            await register(pool, "anna", write_lora(tmp_path / "new", 2000))
        del anna
        await pool.adapters.unregister("anna")
        new = await register(pool, "anna", write_lora(tmp_path / "new", 2000))
        await engines_have(pool, new.fingerprint)
        engine.kill()
        await until(lambda: not pool.healthy)
        await until(lambda: pool.healthy)
        await engines_have(pool, new.fingerprint)
        assert pool.adapters.registered == (new,)


async def test_an_adapter_of_the_settings_without_files_stops_the_start(tmp_path):
    entry = f"anna={tmp_path / 'nowhere'}"
    with pytest.raises(StartupError, match=r"the LoRA adapter anna=.*nowhere: it has no lora_config"):
        async with started(Launcher([MakeFake()]), loras=[entry]):
            pass


async def test_streams_with_an_adapter_are_retried_on_an_engine_that_has_it(tmp_path):
    a, b = Launcher([MakeFake()], "a"), Launcher([MakeFake()], "b")
    async with started(a, b, settings=QUICK) as pool:
        anna = await register(pool, "anna", write_lora(tmp_path))
        a.kill(signal.SIGSTOP)
        b.kill(signal.SIGSTOP)
        streams = [pool.generate(request(f"r{i}", 3, adapter=anna)) for i in range(4)]
        a.kill()
        b.kill(signal.SIGCONT)
        for events in await asyncio.gather(*map(everything, streams)):
            assert [e.samples[0] for e in events if isinstance(e, AudioChunk)] == [1000, 1001, 1002]


async def cycle(pool: RecordedPool, directory: Path, cycles: int) -> None:
    for number in range(cycles):
        anna = await register(pool, "anna", directory)
        if number % 2:
            await pool.adapters.unregister("anna")
        if number % 10 == 0:
            assert await sound(pool, anna, f"c{number}", steps=1) == [1000]
        if number % 2 == 0:
            await pool.adapters.unregister("anna")


async def test_registrations_under_load_lose_no_stream_and_leave_nothing(tmp_path):
    async with pool_of(MakeFake(), MakeFake()) as pool:
        bert = await register(pool, "bert", write_lora(tmp_path / "bert", 5))
        cycling = asyncio.create_task(cycle(pool, write_lora(tmp_path / "anna"), 60))
        spoken = 0
        while not cycling.done():
            results = await asyncio.gather(*(sound(pool, bert, f"s{number}", 20) for number in range(4)))
            assert results == [[5.0 + i for i in range(20)]] * 4
            spoken += 4
        await cycling
        assert spoken
        await engines_have(pool, bert.fingerprint)
        assert pool.adapters.registered == (bert,)
