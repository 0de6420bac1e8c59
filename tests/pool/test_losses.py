"""Engines that die, hang or cannot start: what becomes of their streams, and of their places."""

from __future__ import annotations

import asyncio
import contextlib
import signal

import numpy as np
import psutil
import pytest
from support.fake_engine import MakeFake, refuse_to_start, request
from support.pools import Launcher, everything, health_is, patient, pool_of, started, steps_reach
from support.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_grpc.errors import Aborted, StartupError, Unavailable, VoxCPMError
from voxcpm_grpc.pool import supervisor
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.handle import ProcessHandle
from voxcpm_grpc.request import Admitted, AudioChunk, Finished

QUICK = patient(restart_seconds=0.2)
NEVER = patient(restart_seconds=0.1, restart_limit=1)
SILENCE = 5.0  # seconds, where a test is about it: no process that runs is kept from its sign of life for so long
UNREAD = 128  # chunks at most that are made for who does not read


def pair(**options) -> tuple[Launcher, Launcher]:
    return Launcher([MakeFake(**options)], "a"), Launcher([MakeFake(**options)], "b")


def single(**options) -> Launcher:
    return Launcher([MakeFake(**options)], restarts=False)


@pytest.fixture
def no_successors(monkeypatch):
    """No engine follows one that was lost."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE_SECONDS", NEVER_SECONDS)
    return patient(restart_seconds=NEVER_SECONDS)


async def both_alive(pool: EnginePool) -> None:
    await until(lambda: all(place.alive for place in pool.places))


async def speaking(pool: EnginePool, id: str, steps: int = 100_000):
    """A stream that has been heard."""
    stream = pool.generate(request(id, steps))
    assert isinstance(await anext(stream), Admitted)
    assert isinstance(await anext(stream), AudioChunk)
    return stream


def assert_whole(events, steps: int) -> None:
    admitted, *chunks, finished = events
    assert isinstance(admitted, Admitted)
    assert [chunk.index for chunk in chunks] == list(range(steps))
    assert isinstance(finished, Finished)


async def test_what_nobody_heard_is_spoken_by_another_engine():
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
    [launcher] = [one for one, place in zip(launchers, pool.places, strict=True) if place.jobs]
    return launcher


async def test_who_was_admitted_already_is_admitted_once(tmp_path):
    a, b = pair()
    may_speak = tmp_path / "may speak"
    async with started(a, b, settings=QUICK) as pool:
        stream = pool.generate(request("a", 5, f"after {may_speak}"))
        admitted = await anext(stream)
        busy_one(pool, a, b).kill()
        may_speak.touch()
        assert_whole([admitted, *await everything(stream)], 5)


async def test_nobody_left_is_told_at_once(no_successors):
    """Not when the next engine is there or given up."""
    engine = single()
    async with started(engine, settings=no_successors) as pool:
        stream = pool.generate(request("a", 3, "hang"))
        assert isinstance(await anext(stream), Admitted)
        engine.kill()
        with pytest.raises(Unavailable) as caught:
            await everything(stream)
        assert caught.value.retry_after == 1.0


async def test_what_was_heard_is_aborted(tmp_path):
    engine = single(pieces_after=tmp_path / "never")
    async with started(engine, settings=NEVER) as pool:
        stream = await speaking(pool, "a")
        decoding = pool.decode(np.zeros((10, 4, 8), np.float32))
        await anext(decoding)
        encoding = asyncio.create_task(pool.encode(np.zeros(320), pad_left=True))
        engine.kill()
        for speech in (stream, decoding):
            with pytest.raises(Aborted):
                await everything(speech)
        await asyncio.wait([encoding])
        assert isinstance(encoding.exception(), Unavailable)
        await health_is(pool, False)
        for call in (anext(pool.generate(request("b", 1))), pool.encode(np.zeros(320), pad_left=True)):
            with pytest.raises(Unavailable) as caught:
                await asyncio.wait_for(call, HANG_SECONDS)
            assert caught.value.retry_after == 1.0


async def test_audio_that_waited_in_the_front_counts_as_sent():
    engine = single()
    async with started(engine, settings=NEVER) as pool:
        stream = pool.generate(request("a", 100_000), lead_chunks=5)
        await steps_reach(lambda: pool.stats().steps, 1 + 5)
        engine.kill()
        await health_is(pool, False)
        got = []
        with pytest.raises(Aborted):
            async for event in stream:
                got.append(event)
        assert [event.index for event in got[1:]] == [0, 1, 2, 3, 4]


async def test_encoding_begins_again_elsewhere(tmp_path):
    may_end = tmp_path / "may end"
    a, b = pair(pieces_after=may_end)
    async with started(a, b, settings=QUICK) as pool:
        waveform = np.repeat(np.arange(12, dtype=np.float32), 320)
        encoding = asyncio.create_task(pool.encode(waveform, pad_left=False))
        await until(lambda: any(job.left < job.work for place in pool.places for job in place.jobs.values()))
        busy_one(pool, a, b).kill()  # a piece of it is there
        may_end.touch()
        latents = await asyncio.wait_for(encoding, HANG_SECONDS)
        assert np.allclose(latents[:, 0, 0], np.arange(12))


async def test_an_engine_may_send_a_request_elsewhere():
    async with pool_of(MakeFake(), settings=QUICK) as pool:
        with pytest.raises(Unavailable):
            await everything(pool.generate(request("x", 3, "elsewhere")))
        assert_whole(await everything(pool.generate(request("y", 3))), 3)


async def test_a_request_that_kills_engines_does_not_go_through_the_pool(no_successors):
    launchers = [Launcher([MakeFake()], name) for name in "abc"]
    async with started(*launchers, settings=no_successors) as pool:
        with pytest.raises(Unavailable):
            await everything(pool.generate(request("poison", 3, "exit")))
        assert any(alive(launcher) for launcher in launchers)
        assert_whole(await everything(pool.generate(request("good", 3))), 3)


def alive(launcher: Launcher) -> bool:
    return psutil.pid_exists(launcher.pid) and psutil.Process(launcher.pid).status() != psutil.STATUS_ZOMBIE


async def test_a_crash_in_a_step_ends_everything_there_and_the_place_heals():
    engine = Launcher([MakeFake()])
    async with started(engine, settings=QUICK) as pool:
        good = await speaking(pool, "good")
        bad = pool.generate(request("bad", 3, "crash"))
        with pytest.raises(Aborted):
            await everything(good)
        with pytest.raises(Unavailable):
            await everything(bad)
        await health_is(pool, True)
        assert_whole(await everything(pool.generate(request("next", 3))), 3)
        [place] = pool.places
        assert place.supervisor.restarts == 1


@pytest.mark.parametrize("idle", [True, False])
async def test_a_stopped_process_is_noticed_replaced_and_gone(idle):
    engine = Launcher([MakeFake(step_seconds=0.002)])
    async with started(engine, settings=patient(silence_seconds=SILENCE, restart_seconds=0.2)) as pool:
        stream = None if idle else await speaking(pool, "a")
        pid = engine.pid
        engine.kill(signal.SIGSTOP)
        await health_is(pool, False)
        if stream:
            with pytest.raises(Aborted):
                await everything(stream)
        await health_is(pool, True)
        assert engine.pid != pid
        assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    "make",
    [MakeFake(slowest_step=0.07), MakeFake(slowest_step=0.3, device="cuda:0")],
    ids=["a quick engine", "a slow one on a GPU"],
)
async def test_a_step_without_end_is_noticed(make):
    async with pool_of(make, settings=patient(step_seconds=None, restart_seconds=0.2)) as pool:
        with pytest.raises(Unavailable):
            await everything(pool.generate(request("a", 3, "hang")))
        await health_is(pool, True)


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (MakeFake(slowest_step=10.0), patient(step_seconds=None)),
        (MakeFake(slowest_step=10.0, device="cuda:0"), patient(step_seconds=None)),
        (MakeFake(), patient(step_seconds=HANG_SECONDS)),
    ],
    ids=["an engine that was slow to warm up", "a GPU that was very slow", "as the settings say"],
)
async def test_a_long_step_is_no_fault_where_steps_are_long(make, settings):
    async with pool_of(make, settings=settings) as pool:
        assert_whole(await everything(pool.generate(request("a", 3, "linger"))), 3)
        assert pool.places[0].supervisor.restarts == 0


async def test_the_dead_are_not_preferred_and_the_risen_share_the_load():
    a, b = pair()
    async with started(a, b, settings=QUICK) as pool:
        streams = [await speaking(pool, f"s{i}") for i in range(6)]
        lost = sum(len(place.jobs) for place in pool.places if place.name == "a")
        assert 0 < lost < 6
        a.kill()
        outcomes = await asyncio.gather(*map(until_error, streams))
        assert sum(isinstance(outcome, Aborted) for outcome in outcomes) == lost
        for i in range(10):
            assert_whole(await everything(pool.generate(request(f"next{i}", 3))), 3)
        await both_alive(pool)
        before = pool.stats_by_engine()
        await asyncio.gather(*(everything(pool.generate(request(f"later{i}", 50))) for i in range(10)))
        after = pool.stats_by_engine()
        assert all(after[name].steps > before[name].steps for name in ("a", "b"))
        await until(lambda: not any(stats.running for stats in pool.stats_by_engine().values()))
    assert not any(alive(launcher) for launcher in (a, b))


async def until_error(stream) -> Exception | None:
    """Read more chunks than can have been made for a stream that nobody read."""
    try:
        async with asyncio.timeout(HANG_SECONDS), contextlib.aclosing(stream):
            for _ in range(2 * UNREAD):
                await anext(stream)
    except VoxCPMError as error:
        return error
    return None


async def test_a_place_that_cannot_be_filled_again_is_given_up():
    engine = Launcher([MakeFake(), MakeFake(before=refuse_to_start)])
    async with started(engine, settings=patient(restart_seconds=0.1, restart_limit=2)) as pool:
        engine.kill()
        await asyncio.wait_for(pool.closed_or_given_up(), HANG_SECONDS)
        assert len(engine.handles) == 1 + 2
        assert not pool.healthy


async def test_an_engine_that_cannot_be_closed_is_followed_by_another(monkeypatch, caplog):
    close, failures = ProcessHandle.close, []

    async def fails_at_first(handle: ProcessHandle, *, force: bool = False) -> None:
        await close(handle, force=force)
        if not failures:
            failures.append(handle)
            raise OSError("too many open files")

    monkeypatch.setattr(ProcessHandle, "close", fails_at_first)
    engine = Launcher([MakeFake()])
    async with started(engine, settings=QUICK) as pool:
        engine.kill()
        await health_is(pool, False)
        await health_is(pool, True)
        assert_whole(await everything(pool.generate(request("next", 3))), 3)
    assert "too many open files" in caplog.text


async def test_an_engine_of_another_model_does_not_follow():
    engine = Launcher([MakeFake(), MakeFake(fingerprint="1" * 32)])
    async with started(engine, settings=NEVER) as pool:
        engine.kill()
        await asyncio.wait_for(pool.closed_or_given_up(), HANG_SECONDS)
        assert not alive(engine)


async def test_places_come_and_go():
    a, b = pair(step_seconds=0.002)
    async with started(a) as pool:
        heard_on_a = await speaking(pool, "first", 300)
        place = pool.add(b)
        await both_alive(pool)
        heard_on_b = await speaking(pool, "second", 300)
        assert {one.name: len(one.jobs) for one in pool.places} == {"a": 1, "b": 1}
        leaving = asyncio.create_task(pool.remove(place, seconds=NEVER_SECONDS))
        await asyncio.sleep(0)
        for i in range(4):
            assert_whole(await everything(pool.generate(request(f"r{i}", 3))), 3)
        assert len(await everything(heard_on_b)) == 299 + 1
        await asyncio.wait_for(leaving, HANG_SECONDS)
        assert [one.name for one in pool.places] == ["a"]
        assert not alive(b)
        assert len(await everything(heard_on_a)) == 299 + 1


async def test_who_does_not_end_in_time_is_cut_off_by_a_removal():
    a, b = pair(step_seconds=0.002)
    async with started(a, b) as pool:
        streams = [await speaking(pool, name) for name in ("first", "second")]
        await pool.remove(pool.places[0], seconds=0.1)
        outcomes = await asyncio.gather(*map(until_error, streams))
        assert sum(isinstance(outcome, Aborted) for outcome in outcomes) == 1


async def test_a_pool_is_over_when_the_last_good_place_has_left():
    a, b = Launcher([MakeFake(step_seconds=0.01)], "a"), Launcher([MakeFake(), MakeFake(before=refuse_to_start)], "b")
    async with started(a, b, settings=NEVER) as pool:
        stays = next(place for place in pool.places if place.name == "b")
        leaves = next(place for place in pool.places if place is not stays)
        leaving = asyncio.create_task(pool.remove(leaves, seconds=0.1))
        b.kill()
        await until(lambda: stays.given_up)
        async with asyncio.timeout(HANG_SECONDS):
            await leaving
            await pool.closed_or_given_up()


async def test_a_closed_pool_takes_no_place():
    engine = Launcher([MakeFake()])
    async with started() as pool:
        await pool.close()
        with pytest.raises(StartupError):
            pool.add(engine)
    assert not engine.handles


async def test_closing_while_an_engine_comes_back_leaves_nothing():
    engine = Launcher([MakeFake()])
    async with started(engine, settings=QUICK) as pool:
        engine.kill()
        await health_is(pool, False)
        await until(lambda: len(engine.handles) > 1 and engine.handles[-1].pid)
    assert not alive(engine)
