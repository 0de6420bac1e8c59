"""Three engines with the tiny model under load, which are killed, stopped, poisoned and out of memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from dataclasses import replace

import numpy as np
import pytest
from support.engines.chaos import TOLERANCE, World, lose_one_before_it_is_heard, world
from support.engines.fragile_engine import POISONED
from support.engines.tiny import mixed_requests
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import Internal, Unavailable, VoxCPMError
from voxcpm_grpc.events import Admitted, AudioChunk

CALLERS = 6
ROUNDS = 3


async def test_every_loss_once(tmp_path):
    async with world(tmp_path, "abc") as w:
        await w.learn()
        await lose_one_before_it_is_heard(w)
        async with w.load(CALLERS):
            await w.all_work()
            await disturb(w)
            await w.all_work()
            await until(lambda: sum(speech.error is None for speech in w.speeches) > 3 * CALLERS)
        assert sum(replica.restarts.count for replica in w.pool.replicas) == 4


async def disturb(w: World) -> None:
    before = {replica.name: len(replica.calls) for replica in w.pool.replicas}
    stream = w.pool.generate(replace(mixed_requests()[3], id="heard"), window=1)
    [victim] = [replica.name for replica in w.pool.replicas if len(replica.calls) > before[replica.name]]
    async with asyncio.timeout(HANG_SECONDS):
        assert isinstance(await anext(stream), Admitted)
        heard = [await anext(stream)]
        w.signal(victim, signal.SIGKILL)
        await w.lost_and_healed(victim)  # before the rest is read, which can take longer than that
        heard += [event async for event in stream]
        audio = np.concatenate([event.samples for event in heard if isinstance(event, AudioChunk)])
        np.testing.assert_allclose(audio, w.expected[mixed_requests()[3].id], atol=TOLERANCE, rtol=0)

    w.signal("b", signal.SIGSTOP)
    unheard = [asyncio.create_task(w.speak(request)) for request in mixed_requests()]
    await until(lambda: "b" in w.working())  # some were given to it
    await w.lost_and_healed("b")
    for speech in await asyncio.gather(*unheard):
        speech.check(w.expected[speech.request.id])
        assert not isinstance(speech.error, Unavailable), "another engine was there for requests without audio"

    poisoned = await w.speak(replace(mixed_requests()[0], conditioning=POISONED))
    assert isinstance(poisoned.error, Internal)
    assert not poisoned.audio
    assert all(w.alive(name) for name in "abc")

    w.full["c"].touch()
    await w.lost_and_healed("c")
    assert not w.full["c"].exists()


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [1, 2])
async def test_many_losses_in_any_order(tmp_path, seed):
    """Each round disturbs one or two engines while callers speak and others give up their streams."""
    draw = random.Random(seed)
    async with world(tmp_path, "abc") as w:
        await w.learn()
        async with w.load(CALLERS):
            for _ in range(ROUNDS):
                await asyncio.gather(
                    *(
                        lose(w, name, draw.choice(("kill", "stop", "memory")))
                        for name in draw.sample("abc", draw.choice((1, 2)))
                    ),
                    *(give_up(w, after=draw.randrange(8)) for _ in range(2)),
                    w.speak(replace(mixed_requests()[0], conditioning=POISONED)),
                )
            await w.all_work()
        assert sum(replica.restarts.count for replica in w.pool.replicas) >= ROUNDS
        assert sum(speech.error is None for speech in w.speeches) > ROUNDS


async def lose(w: World, name: str, how: str) -> None:
    match how:
        case "kill":
            w.signal(name, signal.SIGKILL)
        case "stop":
            w.signal(name, signal.SIGSTOP)
        case "memory":
            w.full[name].touch()
    await w.lost_and_healed(name)


async def give_up(w: World, after: int) -> None:
    """Cancel a stream after some of its events."""
    request = replace(mixed_requests()[5], id=f"given-up-{next(w.numbers)}")
    async with contextlib.aclosing(w.pool.generate(request)) as stream:
        with contextlib.suppress(StopAsyncIteration, VoxCPMError):
            async with asyncio.timeout(HANG_SECONDS):
                for _ in range(after):
                    await anext(stream)
