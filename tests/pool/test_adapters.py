"""LoRA adapters of the engines of a pool: registration, streams that hold them, and engines that are lost."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path

import pytest
from support.fake_engine import MakeFake, request, write_lora
from support.pools import Launcher, RecordedPool, everything, patient, pool_of, started
from support.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_grpc.errors import AlreadyExists, FailedPrecondition, Internal, InvalidRequest, NotFound, Unavailable
from voxcpm_grpc.pool import supervisor
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import AudioChunk, LoraInfo

QUICK = patient(restart_seconds=0.2)


async def register(pool: EnginePool, name: str, directory: Path) -> LoraInfo:
    async with asyncio.timeout(HANG_SECONDS):
        return await pool.register_lora(name, "file:somewhere", directory)


async def sound(pool: EnginePool, lora: str, id: str = "r", steps: int = 3) -> list[float]:
    """The value of each chunk of a request with an adapter."""
    events = await everything(pool.generate(request(id, steps, lora=lora)))
    return [float(event.samples[0]) for event in events if isinstance(event, AudioChunk)]


def names(pool: EnginePool) -> list[str]:
    return [info.name for info in pool.loras()]


def ids(pool: EnginePool) -> list[set[str]]:
    """The ids that each engine has."""
    return [{info.id for info in replica.loras.infos} for replica in pool.replicas]


async def engines_have(pool: EnginePool, *wanted: str) -> None:
    """Wait until all engines have these adapters and no others."""
    await until(lambda: all(found == set(wanted) for found in ids(pool)))


async def test_a_registered_adapter_speaks_on_every_engine(tmp_path):
    async with pool_of(MakeFake(), MakeFake()) as pool:
        anna = await register(pool, "anna", write_lora(tmp_path, 1000))
        assert (anna.name, anna.source, anna.directory) == ("anna", "file:somewhere", str(tmp_path))
        assert len(anna.fingerprint) == 32
        assert pool.loras() == (anna,)
        assert ids(pool) == [{anna.id}, {anna.id}]
        with pool.lora("anna") as id:
            for number in range(4):  # equal engines take turns
                assert await sound(pool, id, f"r{number}") == [1000, 1001, 1002]
            assert await sound(pool, "") == [0, 1, 2]
        assert all(stats.chunks for stats in pool.stats_by_engine().values())


async def test_an_unregistered_adapter_is_freed_when_no_stream_holds_it(tmp_path):
    async with pool_of(MakeFake()) as pool:
        anna = await register(pool, "anna", write_lora(tmp_path))
        with pool.lora("anna") as id:
            await pool.unregister_lora("anna")
            assert names(pool) == []
            with pytest.raises(NotFound, match="'anna'; the server has none"), pool.lora("anna"):
                pass
            assert pool.streams_with(anna.id) == 1
            assert await sound(pool, id) == [1000, 1001, 1002]
            assert ids(pool) == [{anna.id}]
        assert pool.streams_with(anna.id) == 0
        await engines_have(pool)
        with pytest.raises(FailedPrecondition, match="register it again"):
            await sound(pool, id)


async def test_a_request_that_outlives_its_holder_keeps_the_adapter(tmp_path):
    may_continue = tmp_path / "may continue"
    async with pool_of(MakeFake()) as pool:
        await register(pool, "anna", write_lora(tmp_path / "anna"))
        with pool.lora("anna") as id:
            call = pool.generate(request("r", 5, f"after {may_continue}", lora=id))
            await anext(call)
        await pool.unregister_lora("anna")
        may_continue.touch()
        events = await everything(call)
        assert [event.samples[0] for event in events if isinstance(event, AudioChunk)] == [1000 + i for i in range(5)]
        await engines_have(pool)


async def test_a_name_can_be_registered_again_while_streams_use_the_old_one(tmp_path):
    async with pool_of(MakeFake(), MakeFake()) as pool:
        old = await register(pool, "anna", write_lora(tmp_path / "old", 1000))
        with pool.lora("anna") as old_id:
            await pool.unregister_lora("anna")
            new = await register(pool, "anna", write_lora(tmp_path / "new", 2000))
            with pool.lora("anna") as new_id:
                assert (old_id, new_id) == (old.id, new.id) and old.id != new.id
                assert await sound(pool, old_id) == [1000, 1001, 1002]
                assert await sound(pool, new_id) == [2000, 2001, 2002]
        await engines_have(pool, new.id)
        assert names(pool) == ["anna"]


async def test_an_adapter_that_one_engine_refuses_stays_nowhere(tmp_path):
    async with pool_of(MakeFake(), MakeFake(loras_taken=False)) as pool:
        with pytest.raises(InvalidRequest, match="the adapter anna does not fit this model"):
            await register(pool, "anna", write_lora(tmp_path))
        assert names(pool) == []
        await engines_have(pool)
        await until(lambda: not any(replica.loras.failed for replica in pool.replicas))


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
            await pool.unregister_lora("bert")
        assert await sound(pool, "") == [0, 1, 2]
    with pytest.raises(Unavailable):
        await register(pool, "bert", write_lora(tmp_path / "anna"))


async def test_streams_go_on_while_the_files_are_read(tmp_path):
    may_read = tmp_path / "may read"
    async with pool_of(MakeFake()) as pool:
        registering = asyncio.create_task(
            register(pool, "anna", write_lora(tmp_path / "anna", then=f"after {may_read}"))
        )
        assert len(await sound(pool, "", steps=300)) == 300
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
        await sound(pool, "")
        registering.cancel()
        await asyncio.wait([registering])
        may_read.touch()
        bert = await register(pool, "bert", write_lora(tmp_path / "bert"))  # is read after it
        assert names(pool) == ["bert"] and ids(pool) == [{bert.id}]


async def test_an_engine_that_restarts_reads_the_adapters_that_streams_may_name(tmp_path):
    engine = Launcher([MakeFake()])
    async with started(engine, settings=QUICK) as pool:
        old = await register(pool, "anna", write_lora(tmp_path / "old", 1000))
        with pool.lora("anna") as old_id:
            await pool.unregister_lora("anna")
            new = await register(pool, "anna", write_lora(tmp_path / "new", 2000))
            engine.kill()
            await until(lambda: not pool.healthy)
            assert pool.loras() == (new,)
            await engines_have(pool, old.id, new.id)
            assert await sound(pool, new.id) == [2000, 2001, 2002]
            assert await sound(pool, old_id) == [1000, 1001, 1002]
        await engines_have(pool, new.id)


async def test_requests_avoid_an_engine_that_cannot_read_their_adapter_again(tmp_path):
    a, b = Launcher([MakeFake()], "a"), Launcher([MakeFake()], "b")
    async with started(a, b, settings=QUICK) as pool:
        anna = await register(pool, "anna", write_lora(tmp_path / "anna"))
        await register(pool, "bert", write_lora(tmp_path / "bert", 5))
        shutil.rmtree(tmp_path / "anna")
        a.kill()
        await until(lambda: pool.replicas[0].loras.failed)
        assert all(replica.ready for replica in pool.replicas)
        with pool.lora("bert") as id:
            for number in range(4):
                assert await sound(pool, anna.id, f"a{number}") == [1000, 1001, 1002]
                assert await sound(pool, id, f"b{number}") == [5, 6, 7]
        b.kill()
        await until(lambda: pool.replicas[1].loras.failed)
        with pytest.raises(FailedPrecondition, match="register it again"):
            await sound(pool, anna.id)
        assert await sound(pool, "") == [0, 1, 2]
        assert names(pool) == ["anna", "bert"]
        await pool.unregister_lora("anna")
        again = await register(pool, "anna", write_lora(tmp_path / "anna", 7))
        assert await sound(pool, again.id) == [7, 8, 9]


async def test_files_that_were_changed_after_the_registration_are_not_read(tmp_path):
    engine = Launcher([MakeFake()])
    async with started(engine, settings=QUICK) as pool:
        anna = await register(pool, "anna", write_lora(tmp_path, 1000))
        write_lora(tmp_path, 2000)
        engine.kill()
        await until(lambda: pool.healthy and pool.replicas[0].loras.failed)
        with pytest.raises(FailedPrecondition, match="register it again"):
            await sound(pool, anna.id)


async def test_a_request_waits_for_no_engine_that_has_yet_to_read_its_adapter(tmp_path):
    """It can be retried; the adapter is known meanwhile."""
    engine, may_read = Launcher([MakeFake()]), tmp_path / "may read"
    async with started(engine, settings=QUICK) as pool:
        may_read.touch()
        anna = await register(pool, "anna", write_lora(tmp_path / "anna", then=f"after {may_read}"))
        may_read.unlink()
        engine.kill()
        await until(lambda: not pool.healthy)
        await until(lambda: pool.healthy)
        assert pool.loras() == (anna,)
        with pytest.raises(Unavailable) as caught:
            await sound(pool, anna.id)
        assert caught.value.retry_after
        may_read.touch()
        await engines_have(pool, anna.id)


async def test_an_engine_that_is_lost_during_a_registration_does_not_stop_it(tmp_path, monkeypatch):
    a, b, may_read = Launcher([MakeFake()], "a"), Launcher([MakeFake()], "b"), tmp_path / "may read"
    directory = write_lora(tmp_path / "anna", then=f"after {may_read}")
    async with started(a, b, settings=QUICK) as pool:
        registering = asyncio.create_task(register(pool, "anna", directory))
        a.kill()
        await until(lambda: not pool.replicas[0].ready)
        may_read.touch()
        anna = await registering
        await engines_have(pool, anna.id)
        may_read.unlink()
        monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", NEVER_SECONDS)
        registering = asyncio.create_task(register(pool, "bert", directory))
        a.kill()
        b.kill()
        with pytest.raises(Unavailable):
            await registering
        assert pool.loras() == (anna,)


async def test_an_engine_that_is_added_later_has_the_adapters(tmp_path):
    async with pool_of(MakeFake()) as pool:
        anna = await register(pool, "anna", write_lora(tmp_path))
        pool.add(Launcher([MakeFake()], "later"))
        await until(lambda: len(pool.replicas) == 2 and all(replica.ready for replica in pool.replicas))
        await engines_have(pool, anna.id)
        await pool.remove(pool.replicas[0], seconds=HANG_SECONDS)
        assert await sound(pool, anna.id) == [1000, 1001, 1002]


async def test_adapters_of_the_start_are_registered_and_stay_unregistered(tmp_path):
    info = LoraInfo(
        id="anna", name="anna", source="x", directory=str(write_lora(tmp_path / "anna", 1000)), fingerprint=""
    )
    engine = Launcher([MakeFake(loras=(info,))])
    async with started(engine, settings=QUICK) as pool:
        assert pool.loras() == (info,)
        assert await sound(pool, "anna") == [1000, 1001, 1002]
        with pytest.raises(AlreadyExists):
            await register(pool, "anna", write_lora(tmp_path / "new", 2000))
        await pool.unregister_lora("anna")
        new = await register(pool, "anna", write_lora(tmp_path / "new", 2000))
        await engines_have(pool, new.id)
        engine.kill()
        await until(lambda: not pool.healthy)
        await engines_have(pool, new.id)
        assert pool.loras() == (new,)


async def test_streams_with_an_adapter_are_retried_on_an_engine_that_has_it(tmp_path):
    a, b = Launcher([MakeFake()], "a"), Launcher([MakeFake()], "b")
    async with started(a, b, settings=QUICK) as pool:
        anna = await register(pool, "anna", write_lora(tmp_path))
        a.kill(signal.SIGSTOP)
        b.kill(signal.SIGSTOP)
        streams = [pool.generate(request(f"r{i}", 3, lora=anna.id)) for i in range(4)]
        a.kill()
        b.kill(signal.SIGCONT)
        for events in await asyncio.gather(*map(everything, streams)):
            assert [e.samples[0] for e in events if isinstance(e, AudioChunk)] == [1000, 1001, 1002]


async def cycle(pool: RecordedPool, directory: Path, cycles: int) -> None:
    for number in range(cycles):
        await register(pool, "anna", directory)
        with pool.lora("anna") as id:
            if number % 2:
                await pool.unregister_lora("anna")
            if number % 10 == 0:
                assert await sound(pool, id, f"c{number}", steps=1) == [1000]
        if number % 2 == 0:
            await pool.unregister_lora("anna")


async def test_registrations_under_load_lose_no_stream_and_leave_nothing(tmp_path):
    async with pool_of(MakeFake(), MakeFake()) as pool:
        bert = await register(pool, "bert", write_lora(tmp_path / "bert", 5))
        cycling = asyncio.create_task(cycle(pool, write_lora(tmp_path / "anna"), 200))
        spoken = 0
        while not cycling.done():
            with pool.lora("bert") as id:
                results = await asyncio.gather(*(sound(pool, id, f"s{number}", 20) for number in range(4)))
            assert results == [[5.0 + i for i in range(20)]] * 4
            spoken += 4
        await cycling
        assert spoken
        await engines_have(pool, bert.id)
        assert pool.loras() == (bert,)
        assert not any(replica.loras.failed for replica in pool.replicas)
        assert pool.streams_with(bert.id) == 0
