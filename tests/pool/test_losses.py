"""Engines that die or cannot start: the end of their calls, and the restart of their replicas.

`tests/system/chaos/test_losses.py` has those that hang, and those that start several times.
"""

from __future__ import annotations

import asyncio
import signal

import numpy as np
import pytest
from support.clients.whole_streams import assert_whole, refused, speaking, until_error
from support.doubles.fake_engine import MakeFake, carries, refuse_to_start, request
from support.doubles.pools import (
    Launcher,
    all_ready,
    chunks_of,
    everything,
    health_is,
    patient,
    pool_of,
    started,
    steps_reach,
)
from support.engines.voice_parts import latents_of, voice_part
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_grpc.errors import Aborted, StartupError, Unavailable
from voxcpm_grpc.events import Admitted, AudioChunk
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines import supervisor
from voxcpm_grpc.pool.engines.local import EngineProcess
from voxcpm_grpc.request import Role

QUICK = patient(restart_seconds=0.2)
NEVER = patient(restart_seconds=0.1, restart_limit=1)


def pair(**options) -> tuple[Launcher, Launcher]:
    return Launcher([MakeFake(**options)], "a"), Launcher([MakeFake(**options)], "b")


def single_start(**options) -> Launcher:
    return Launcher([MakeFake(**options)], restarts=False)


@pytest.fixture
def no_restarts(monkeypatch):
    """No engine is started again."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", NEVER_SECONDS)
    return patient(restart_seconds=NEVER_SECONDS)


async def test_requests_without_audio_are_retried_on_another_engine():
    a, b = pair()
    async with started(a, b, settings=QUICK) as pool:
        a.kill(signal.SIGSTOP)
        b.kill(signal.SIGSTOP)
        streams = [pool.generate(request(f"r{i}", 5)) for i in range(6)]
        a.kill()
        b.kill(signal.SIGCONT)
        for events in await asyncio.gather(*map(everything, streams)):
            assert_whole(events, 5)


def busy_one(pool: EnginePool, *launchers: Launcher) -> Launcher:
    [launcher] = [one for one, replica in zip(launchers, pool.replicas, strict=True) if replica.calls]
    return launcher


async def test_a_retried_request_is_admitted_once(tmp_path):
    a, b = pair()
    may_continue = tmp_path / "may continue"
    async with started(a, b, settings=QUICK) as pool:
        stream = pool.generate(request("a", 5, f"after {may_continue}"))
        admitted = await anext(stream)
        busy_one(pool, a, b).kill()
        may_continue.touch()
        assert_whole([admitted, *await everything(stream)], 5)


async def test_a_request_fails_at_once_if_no_engine_is_ready_in_time(no_restarts):
    """It does not wait until the replica restarts or is given up. The error says when the restart is expected."""
    engine = single_start()
    async with started(engine, settings=no_restarts) as pool:
        stream = pool.generate(request("a", 3, "hang"))
        assert isinstance(await anext(stream), Admitted)
        engine.kill()
        with pytest.raises(Unavailable) as caught:
            await everything(stream)
        assert caught.value.retry_after == pytest.approx(NEVER_SECONDS, rel=0.1)


async def test_streams_with_audio_are_aborted(tmp_path):
    engine = single_start(pieces_after=tmp_path / "never")
    async with started(engine, settings=NEVER) as pool:
        stream = await speaking(pool, "a")
        decoding = pool.decode(voice_part(np.zeros((10, 4, 8), np.float32)))
        await anext(decoding)
        encoding = asyncio.create_task(pool.encode(np.zeros(320), Role.PROMPT))
        engine.kill()
        for call in (stream, decoding):
            with pytest.raises(Aborted):
                await everything(call)
        await asyncio.wait([encoding])
        assert isinstance(encoding.exception(), Unavailable)
        await health_is(pool, False)
        for call in (anext(pool.generate(request("b", 1))), pool.encode(np.zeros(320), Role.PROMPT)):
            with pytest.raises(Unavailable) as caught:
                await asyncio.wait_for(call, HANG_SECONDS)
            assert caught.value.retry_after == 1.0


async def test_audio_that_waits_in_the_front_counts_as_sent():
    engine = single_start()
    async with started(engine, settings=NEVER) as pool:
        stream = pool.generate(request("a", 100_000), window=5)
        await steps_reach(lambda: pool.stats().steps, 1 + 5)
        await until(lambda: stream.paused)  # the last one has arrived
        engine.kill()
        await health_is(pool, False)
        events = []
        with pytest.raises(Aborted):
            async for event in stream:
                events.append(event)
        assert [event.index for event in events[1:]] == [0, 1, 2, 3, 4]


async def test_encoding_is_retried_on_another_engine(tmp_path):
    may_end = tmp_path / "may end"
    a, b = pair(pieces_after=may_end)
    async with started(a, b, settings=QUICK) as pool:
        waveform = np.repeat(np.arange(12, dtype=np.float32), 320)
        encoding = asyncio.create_task(pool.encode(waveform, Role.REFERENCE))
        await until(lambda: any(call.steps_left < call.work for replica in pool.replicas for call in replica.calls))
        busy_one(pool, a, b).kill()  # after the first piece
        may_end.touch()
        latents = latents_of(await asyncio.wait_for(encoding, HANG_SECONDS))
        assert np.allclose(latents[:, 0, 0], np.arange(12))


async def test_an_engine_may_send_a_request_to_another_engine():
    async with pool_of(MakeFake(), settings=QUICK) as pool:
        with pytest.raises(Unavailable):
            await everything(pool.generate(request("x", 3, "elsewhere")))
        assert_whole(await everything(pool.generate(request("y", 3))), 3)


async def test_a_request_that_kills_engines_does_not_kill_all(no_restarts):
    launchers = [Launcher([MakeFake()], name) for name in "abc"]
    async with started(*launchers, settings=no_restarts) as pool:
        with refused():
            await everything(pool.generate(request("poison", 3, "exit")))
        assert sum(launcher.is_running for launcher in launchers) == 1
        assert_whole(await everything(pool.generate(request("good", 3))), 3)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (MakeFake(slowest_step=10.0), patient(step_seconds=None)),
        (MakeFake(slowest_step=10.0, device="cuda:0"), patient(step_seconds=None)),
        (MakeFake(), patient(step_seconds=HANG_SECONDS)),
    ],
    ids=["a warm-up with slow steps", "a GPU with very slow steps", "a longer limit in the settings"],
)
async def test_a_long_step_is_allowed_on_a_slow_engine(make, settings):
    async with pool_of(make, settings=settings) as pool:
        assert_whole(await everything(pool.generate(request("a", 3, "linger"))), 3)
        assert pool.replicas[0].restarts.count == 0


async def test_a_replica_that_does_not_restart_is_given_up():
    engine = Launcher([MakeFake(), MakeFake(before=refuse_to_start)])
    async with started(engine, settings=patient(restart_seconds=0.1, restart_limit=2)) as pool:
        engine.kill()
        await asyncio.wait_for(pool.closed_or_given_up(), HANG_SECONDS)
        assert len(engine.processes) == 1 + 2
        assert not pool.healthy


async def test_an_engine_that_cannot_be_closed_is_replaced(monkeypatch, caplog):
    close, failures = EngineProcess.close, []

    async def fails_at_first(process: EngineProcess, *, force: bool = False) -> None:
        await close(process, force=force)
        if not failures:
            failures.append(process)
            raise OSError("too many open files")

    monkeypatch.setattr(EngineProcess, "close", fails_at_first)
    engine = Launcher([MakeFake()])
    async with started(engine, settings=QUICK) as pool:
        engine.kill()
        await health_is(pool, False)
        await health_is(pool, True)
        assert_whole(await everything(pool.generate(request("next", 3))), 3)
    assert "too many open files" in caplog.text


async def test_reports_that_cannot_be_read_cost_no_engine_and_no_call_without_audio(monkeypatch, caplog):
    decode, failures = encoding.decode_reports, []

    def fails_once(data):
        reports = decode(data)
        if not failures and any(carries(report, AudioChunk) for report in reports):
            failures.append(reports)
            raise ValueError("no such report")
        return reports

    async with pool_of(MakeFake()) as pool:
        monkeypatch.setattr(encoding, "decode_reports", fails_once)
        assert_whole(await everything(pool.generate(request("a", 100))), 100)
        assert "no such report" in caplog.text
        await until(lambda: not pool.stats().running)
        assert pool.replicas[0].restarts.count == 0


async def test_an_engine_of_another_model_is_no_replacement():
    engine = Launcher([MakeFake(), MakeFake(fingerprint="1" * 32)])
    async with started(engine, settings=NEVER) as pool:
        engine.kill()
        await asyncio.wait_for(pool.closed_or_given_up(), HANG_SECONDS)
        assert not engine.is_running
        assert pool.replicas[0].restarts.count == 0


async def test_replicas_are_added_and_removed():
    a, b = pair(step_seconds=0.002)
    async with started(a) as pool:
        on_a = await speaking(pool, "first", 300)
        replica = pool.add(b)
        await all_ready(pool)
        on_b = await speaking(pool, "second", 300)
        assert {one.name: len(one.calls) for one in pool.replicas} == {"a": 1, "b": 1}
        leaving = asyncio.create_task(pool.remove(replica, seconds=NEVER_SECONDS))
        await asyncio.sleep(0)
        for i in range(4):
            assert_whole(await everything(pool.generate(request(f"r{i}", 3))), 3)
        assert chunks_of(await everything(on_b)) == 299
        await asyncio.wait_for(leaving, HANG_SECONDS)
        assert [one.name for one in pool.replicas] == ["a"]
        assert not b.is_running
        assert chunks_of(await everything(on_a)) == 299


async def test_a_removal_moves_the_streams_to_the_others():
    a, b = pair(step_seconds=0.002)
    async with started(a, b) as pool:
        streams = [await speaking(pool, name) for name in ("first", "second")]
        await pool.remove(pool.replicas[0], seconds=NEVER_SECONDS)
        assert await asyncio.gather(*map(until_error, streams)) == [None] * 2
        assert pool.continuations == 1


async def test_a_removal_of_the_last_engine_aborts_streams_that_do_not_finish_in_time():
    engine = Launcher([MakeFake(step_seconds=0.002)])
    async with started(engine) as pool:
        stream = await speaking(pool, "a")
        await pool.remove(pool.replicas[0], seconds=0.1)
        assert isinstance(await until_error(stream), Aborted)


async def test_a_pool_ends_when_its_last_good_replica_is_removed():
    a, b = Launcher([MakeFake(step_seconds=0.01)], "a"), Launcher([MakeFake(), MakeFake(before=refuse_to_start)], "b")
    async with started(a, b, settings=NEVER) as pool:
        stays = next(replica for replica in pool.replicas if replica.name == "b")
        leaves = next(replica for replica in pool.replicas if replica is not stays)
        leaving = asyncio.create_task(pool.remove(leaves, seconds=0.1))
        b.kill()
        await until(lambda: stays.given_up)
        async with asyncio.timeout(HANG_SECONDS):
            await leaving
            await pool.closed_or_given_up()


async def test_a_closed_pool_refuses_a_new_replica():
    engine = Launcher([MakeFake()])
    async with started() as pool:
        await pool.close()
        with pytest.raises(StartupError):
            pool.add(engine)
    assert not engine.processes


async def test_closing_during_a_restart_leaves_no_process():
    engine = Launcher([MakeFake()])
    async with started(engine, settings=QUICK) as pool:
        engine.kill()
        await health_is(pool, False)
        await until(lambda: len(engine.processes) > 1 and engine.processes[-1].pid)
    assert not engine.is_running
