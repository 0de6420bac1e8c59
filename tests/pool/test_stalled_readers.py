"""Streams whose clients do not read take no room from others, and a full queue refuses at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.doubles.fake_engine import MakeFake, request
from support.doubles.pools import patient, pool_of
from support.servers.waiting import until

from voxcpm_grpc.errors import Exhausted, QueueFull
from voxcpm_grpc.events import Admitted
from voxcpm_grpc.pool.balancer import Room
from voxcpm_grpc.pool.replica import Replica


def room(replica: Replica) -> Room:
    return replica.load()[0]


async def test_a_stream_that_is_not_read_leaves_its_replica_free():
    async with pool_of(MakeFake(slots=2)) as pool:
        [replica] = pool.replicas
        calls = [pool.generate(request(f"stalled {n}", 100), window=4, first_limit=4) for n in range(2)]
        assert room(replica) is Room.QUEUE
        await until(lambda: all(call.paused for call in calls))
        assert room(replica) is Room.SLOT and replica.load()[1] == 0
        calls[0].allow(6)
        assert replica.load()[1] > 0
        calls[1].allow(6)
        assert room(replica) is Room.QUEUE


async def test_streams_that_are_not_read_do_not_send_others_to_a_busier_replica():
    async with pool_of(MakeFake(slots=2), MakeFake(slots=2)) as pool:
        stalled = [pool.generate(request(f"stalled {n}", 1000), window=4, first_limit=4) for n in range(4)]
        await until(lambda: all(call.paused for call in stalled))
        assert [len(replica.calls) for replica in pool.replicas] == [2, 2]
        busy = [pool.generate(request(f"busy {n}", 10**6), window=10**6) for n in range(2)]
        assert all(replica.load()[1] > 0 for replica in pool.replicas), "each has one of them"
        for call in busy:
            await call.aclose()


async def test_a_full_queue_refuses_while_the_engine_does_not_answer():
    async with pool_of(MakeFake(slots=1, queue=1), settings=patient()) as pool:
        hung = pool.generate(request("hung", 100, "hang"))
        assert isinstance(await anext(hung), Admitted)
        waiting = pool.generate(request("waiting", 3))
        with pytest.raises(QueueFull, match="all slots are in use and 1 requests wait, the limit is 1") as refused:
            await anext(pool.generate(request("refused", 3)))
        assert refused.value.retry_after == 1.0
        assert not waiting.events.peek()
        continues = pool.generate(replace(request("continues", 3), continues=True))
        assert not continues.events.peek(), "a stream of which audio was sent is never refused"
        await waiting.aclose()
        await continues.aclose()
        accepted = pool.generate(request("accepted", 3))
        assert not accepted.events.peek()


async def test_a_request_is_refused_only_if_the_queues_of_all_replicas_are_full():
    make = MakeFake(slots=1, queue=1)
    async with pool_of(make, make, settings=patient()) as pool:
        calls = [pool.generate(request(f"hung {n}", 100, "hang")) for n in range(2)]
        for call in calls:
            assert isinstance(await anext(call), Admitted)
        queued = [pool.generate(request(f"queued {n}", 3)) for n in range(2)]
        assert [len(replica.calls) for replica in pool.replicas] == [2, 2]
        with pytest.raises(Exhausted, match="requests wait"):
            await anext(pool.generate(request("refused", 3)))
        await queued[1].aclose()
        assert not pool.generate(request("accepted", 3)).events.peek()
