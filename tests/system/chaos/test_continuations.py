"""Streams go on on another engine when the process of theirs ends, and a request that ends engines ends alone."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import replace

import numpy as np
import psutil
import pytest
from support.clients.whole_streams import assert_all_whole, assert_whole, heard, home
from support.doubles.fake_engine import MakeFake, request
from support.doubles.pools import Launcher, everything, patient, started
from support.engines.voice_parts import voice_part
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import Aborted, Reason, VoxCPMError
from voxcpm_grpc.events import Admitted, Event
from voxcpm_grpc.request import Priority, Sampling

QUICK = patient(restart_seconds=0.2)


def launchers(names: str, **options) -> list[Launcher]:
    return [Launcher([MakeFake(**{"step_seconds": 0.002, **options})], name) for name in names]


@pytest.mark.parametrize(
    ("engines", "count"),
    [("ab", 7), ("a", 1), ("ab", 1)],
)
async def test_a_stream_goes_on_with_its_next_chunk(engines, count):
    made = launchers(engines)
    async with started(*made, settings=QUICK) as pool:
        stream = pool.generate(request("s", 300))
        first = await heard(stream, count)
        lost = home(pool, stream)
        next(one for one in made if one.name == lost.name).kill()
        finished = assert_whole([*first, *await everything(stream)], 300)
        assert pool.continuations == stream.continuations == 1
        assert finished.engine_seconds > 0.1, "the time on the lost engine counts, too"


async def test_a_stream_goes_on_from_engine_to_engine():
    made = launchers("ab")
    async with started(*made, settings=QUICK) as pool:
        stream, events = pool.generate(request("s", 600)), list[Event]()
        for losses in range(5):
            events += await heard(stream, 8)
            lost = home(pool, stream)
            next(one for one in made if one.name == lost.name).kill()
            await until(lambda losses=losses: pool.continuations > losses)
        assert_whole([*events, *await everything(stream)], 600)


async def test_streams_of_all_kinds_go_on():
    """Interactive and batch ones, with and without a slot, paused and not read at all."""
    made = launchers("ab", slots=3)
    async with started(*made, settings=QUICK) as pool:
        kinds = [
            *(request(f"i{number}", 60) for number in range(8)),
            *(replace(request(f"b{number}", 60), priority=Priority.BATCH) for number in range(4)),
        ]
        streams = [pool.generate(one, window=5) for one in kinds]
        await asyncio.gather(*(anext(stream) for stream in streams[:3]))
        made[0].kill()
        await until(lambda: pool.replicas[0].restarts.count)
        made[1].kill()
        ended = await asyncio.gather(*map(everything, streams))
        for stream, events in zip(streams, ended, strict=True):
            assert_whole(events if isinstance(events[0], Admitted) else [ADMITTED, *events], 60)
            assert stream.deaths == 0


ADMITTED = Admitted(queue_seconds=0.0, prompt_tokens=1, cached_tokens=0)


async def test_a_paused_stream_goes_on_when_it_is_read():
    [engine] = launchers("a")
    async with started(engine, settings=QUICK) as pool:
        stream = pool.generate(request("s", 50), window=4)
        first = await heard(stream, 2)
        await until(lambda: stream.paused)
        engine.kill()
        await until(lambda: pool.replicas[0].restarts.count == 1)
        assert_whole([*first, *await everything(stream)], 50)


async def test_a_cancelled_stream_does_not_go_on():
    [engine] = launchers("a")
    async with started(engine, settings=QUICK) as pool:
        stream, other = (pool.generate(request(name, 100_000)) for name in ("s", "other"))
        await heard(stream, 3)
        await heard(other, 3)
        engine.kill()
        await until(lambda: not pool.replicas[0].ready)
        stream.cancel()
        await heard(other, 200)
        assert [call.name for call in pool.replicas[0].calls] == ["other"]
        assert pool.stats().running == 1


async def test_a_decoded_voice_goes_on_with_its_next_sample(tmp_path):
    may_end = tmp_path / "may end"
    [engine] = launchers("a", pieces_after=may_end)
    async with started(engine, settings=QUICK) as pool:
        latents = np.arange(6, dtype=np.float32)[:, None, None] * np.ones((6, 4, 8), np.float32)
        audio = pool.decode(voice_part(latents))
        pieces = [await anext(audio)]
        engine.kill()
        may_end.touch()
        pieces += await everything(audio)
        whole = np.concatenate(pieces)
        assert np.array_equal(whole, np.repeat(np.arange(6), len(whole) // 6))


@pytest.mark.parametrize(
    ("engines", "text"),
    [("ab", "exit-at 12"), *((engines, text) for engines in ("a", "abc") for text in ("exit", "exit-at 12", "crash"))],
)
async def test_a_request_that_ends_engines_ends_alone_after_two(text, engines):
    made = launchers(engines)
    async with started(*made, settings=QUICK) as pool:
        streams = [pool.generate(request(f"s{number}", 400)) for number in range(9)]
        first = await asyncio.gather(*(heard(stream, 2) for stream in streams))
        # It makes a chunk once the one before was read: one that an engine takes along with it would be made again by
        # the next engine, which so survives a step.
        poison = pool.generate(request("poison", 30, text), window=1)
        with pytest.raises(Aborted) as caught:
            await everything(poison)
        assert caught.value.reason is Reason.REQUEST_ENDED_ENGINES
        await assert_all_whole(first, streams, 400)
        await until(lambda: all(replica.ready for replica in pool.replicas))  # the last to end may still start
        assert sum(replica.restarts.count for replica in pool.replicas) == 2


async def test_two_requests_that_end_engines_end_alone():
    made = launchers("abc")
    async with started(*made, settings=QUICK) as pool:
        good = [pool.generate(request(f"s{number}", 400)) for number in range(6)]
        # They end engines far from each other: a stream on trial is to blame, too, if its engine ends by another one.
        bad = [pool.generate(request(f"bad{number}", 200, f"exit-at {number}"), window=1) for number in (3, 90)]
        outcomes = await asyncio.gather(*map(everything, [*good, *bad]), return_exceptions=True)
        for outcome in outcomes[:6]:
            assert not isinstance(outcome, BaseException)
            assert_whole(outcome, 400)
        assert [getattr(outcome, "reason", None) for outcome in outcomes[6:]] == [Reason.REQUEST_ENDED_ENGINES] * 2
        assert sum(replica.restarts.count for replica in pool.replicas) <= 4


async def test_it_is_refused_from_then_on_and_takes_no_third_engine():
    [engine] = launchers("a")
    async with started(engine, settings=QUICK) as pool:
        poison = request("poison", 30, "exit-at 3")
        for number in range(3):
            seeded = replace(poison, id=f"{number}", sampling=replace(poison.sampling, seed=number))
            with pytest.raises(VoxCPMError) as caught:
                await everything(pool.generate(seeded, window=1))
            assert caught.value.reason is Reason.REQUEST_ENDED_ENGINES
        assert_whole(await everything(pool.generate(request("good", 30))), 30)
        assert pool.replicas[0].restarts.count == 2


async def test_a_stream_that_waits_too_long_for_an_engine_is_aborted():
    [engine] = launchers("a")
    engine.restarts = False
    async with started(engine, settings=patient(restart_seconds=0.1, restart_limit=100)) as pool:
        stream = pool.generate(request("s", 100_000), max_wait=0.5)
        await heard(stream, 3)
        engine.kill()
        with pytest.raises(Aborted, match="after audio was sent") as caught:
            await everything(stream)
        assert caught.value.reason is Reason.AUDIO_BROKEN_OFF


async def test_a_stopped_engine_loses_no_stream():
    made = launchers("ab")
    async with started(*made, settings=patient(silence_seconds=5.0, restart_seconds=0.2)) as pool:
        streams = [pool.generate(request(f"s{number}", 400)) for number in range(4)]
        first = [await heard(stream, 2) for stream in streams]
        made[0].kill(signal.SIGSTOP)
        await assert_all_whole(first, streams, 400)
        assert pool.continuations > 0


async def test_a_drained_engine_gives_its_streams_to_others():
    made = launchers("ab")
    async with started(*made, settings=QUICK) as pool:
        streams = [pool.generate(request(f"s{number}", 400)) for number in range(6)]
        first = [await heard(stream, 2) for stream in streams]
        leaving = pool.replicas[0]
        moved = len(leaving.calls)
        async with asyncio.timeout(HANG_SECONDS):
            await pool.drain(leaving, seconds=HANG_SECONDS)
        assert not leaving.calls and pool.continuations == moved > 0
        await assert_all_whole(first, streams, 400)
        assert all(stream.deaths == 0 for stream in streams)


async def test_the_engine_of_a_stream_that_goes_on_gets_what_is_left_of_its_work():
    made = launchers("ab")
    async with started(*made, settings=QUICK) as pool:
        stream = pool.generate(replace(request("s", 400), sampling=Sampling(min_steps=400, max_steps=400)))
        await heard(stream, 100)
        lost = home(pool, stream)
        next(one for one in made if one.name == lost.name).kill()
        await until(lambda: pool.continuations)
        assert stream.work_here <= 300
        with contextlib.suppress(VoxCPMError):
            await stream.aclose()


async def test_an_engine_leaves_service_and_comes_back():
    made = launchers("ab")
    async with started(*made, settings=QUICK) as pool:
        streams = [pool.generate(request(f"s{number}", 600)) for number in range(4)]
        first = [await heard(stream, 2) for stream in streams]
        leaving, pid = pool.replicas[0], made[0].pid
        pool.start_engine(leaving.name)  # which changes nothing, because it is in service
        pool.drain_engine(leaving.name, restart=False)
        async with asyncio.timeout(HANG_SECONDS):
            while not leaving.drained:
                await pool.changed()
            await assert_all_whole(first, streams, 600)
        await until(lambda: not psutil.pid_exists(pid))
        await asyncio.sleep(0.5)  # longer than the pause before a restart
        assert len(made[0].processes) == 1 and leaving.drained and not leaving.given_up
        pool.start_engine(leaving.name)
        await until(lambda: leaving.ready)
        assert leaving.restarts.count == 0, "it was not lost"
        assert pool.continuations == 2


async def test_a_signal_replaces_an_engine():
    made = launchers("ab")
    async with started(*made, settings=QUICK) as pool:
        streams = [pool.generate(request(f"s{number}", 900)) for number in range(4)]
        first = [await heard(stream, 2) for stream in streams]
        pid = made[0].pid
        made[0].kill(signal.SIGUSR1)
        await until(lambda: len(made[0].processes) == 2 and pool.replicas[0].ready)
        assert made[0].pid != pid
        await assert_all_whole(first, streams, 900)
        assert pool.continuations == 2 and pool.replicas[0].restarts.count == 0


async def test_the_only_engine_finishes_its_streams_before_a_signal_replaces_it():
    [engine] = launchers("a")
    async with started(engine, settings=QUICK) as pool:
        stream = pool.generate(request("s", 600))
        first, pid = await heard(stream, 2), engine.pid
        engine.kill(signal.SIGUSR1)
        await until(lambda: pool.replicas[0].out_of_service)
        later = pool.generate(request("later", 30))
        assert_whole([*first, *await everything(stream)], 600)
        assert_whole(await everything(later), 30)
        assert engine.pid != pid and pool.continuations == 0
