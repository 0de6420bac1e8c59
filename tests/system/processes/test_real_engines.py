"""Losses of engines that run a model. More of them, under load, are in tests/system/chaos."""

from dataclasses import replace

import pytest
from support.chaos import lose_one_before_it_is_heard, world
from support.engines import mixed_requests
from support.fragile_engine import POISONED

from voxcpm_grpc.errors import Internal


@pytest.mark.timeout(300)  # three engines are started
async def test_a_retried_request_gives_the_same_audio_and_a_failing_one_fails_alone(tmp_path):
    async with world(tmp_path, "ab") as w:
        await w.learn()
        await lose_one_before_it_is_heard(w)
        async with w.load(callers=2):
            await w.all_work()
            poisoned = await w.speak(replace(mixed_requests()[0], conditioning=POISONED))
        assert isinstance(poisoned.error, Internal)
        assert not poisoned.audio
        assert all(w.alive(name) for name in "ab")
        assert sum(replica.restarts.count for replica in w.pool.replicas) == 1
