"""A caller can have only so much text spoken in a minute."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import pytest
from support.clients.callers import calling_from
from support.doubles.made_up_time import run
from support.servers.sessions import session

from voxcpm_grpc.errors import Exhausted
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.auth.keys import create
from voxcpm_server.speech.character_quota import CharacterQuota, CharacterQuotas
from voxcpm_server.values.inputs import Continuity, Finish, Flush, Interrupt, Text

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
ONE, TWO, THREE = "One is here. ", "Two is here. ", "Three is here. "
LIMIT = 20


def quota() -> CharacterQuota:
    return CharacterQuota(CharacterQuotas(LIMIT), "a")


async def test_processes_that_share_a_quota_spend_each_others_characters_once():
    sent: list[tuple[str, int]] = []
    one = CharacterQuotas(LIMIT, lambda caller, characters: sent.append((caller, characters)))
    other = CharacterQuotas(LIMIT, lambda *_: pytest.fail("what another process has spent is not sent again"))
    one.spend("a", 3 * LIMIT)
    for caller, characters in sent:
        other.take(caller, characters)
    assert sent == [("a", 3 * LIMIT)]
    assert one.wait("a") > 60 and other.wait("a") > 60
    assert not other.wait("b")


def test_a_stream_that_was_heard_waits_for_its_quota_and_ends_well(fake):
    pool, times = fake(), []
    generate = pool.generate

    def timed(request: Any, **options: Any) -> Any:
        times.append(asyncio.get_running_loop().time())
        return generate(request, **options)

    pool.generate = timed
    for continuity in Continuity:
        times.clear()
        sent = session(pool, [Text(ONE + TWO + THREE)], continuity=continuity, quota=quota())
        assert sent[-1].summary.segments == 3
        # 20 characters are there, and three a second follow: 13 - 1 and 26 - 1 and 41 of them are needed
        assert times[0] == times[1] == 0.0
        assert 60 / LIMIT * 7 <= times[2] < 60 / LIMIT * 10


def test_a_stream_that_has_not_begun_is_refused_with_the_true_time(fake):
    pool, mine = fake(), quota()
    with pytest.raises(Exhausted, match=r"limit is 20 characters a minute; retry in [\d.]+ s") as raised:
        script: list[Any] = [lambda: mine.spend(50), Text(ONE)]
        session(pool, script, quota=mine)
    assert raised.value.retry_after == pytest.approx((50 - LIMIT + 1) * 60 / LIMIT)
    assert not pool.requests


def test_an_interrupt_ends_the_wait_for_the_quota(fake):
    script = [Text(ONE + TWO + THREE), Flush("", True), 1.0, Interrupt("stop"), Text("Four."), Finish()]
    sent = session(fake(), script, quota=quota())
    assert [chunk.interrupted.tag for chunk in sent if chunk.HasField("interrupted")] == ["stop"]
    assert sent[-1].summary.segments == 3  # the last one is the text after the interrupt


async def test_text_that_gets_no_slot_does_not_count(serve_front):
    async with serve_front(max_chars_per_minute_per_caller=LIMIT, max_queue_seconds=0.1) as served:
        for _ in range(4):
            await served.pool.slots.acquire()
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError, match="no slot became free"):
                await speaks(served.stub)
        for _ in range(4):
            served.pool.slots.release()
        assert await speaks(served.stub)


def test_only_callers_of_the_last_minute_are_remembered():
    quotas = CharacterQuotas(LIMIT)

    async def many_callers() -> None:
        for number in range(1000):
            quotas.spend(f"caller {number}", 5)
            await asyncio.sleep(1.0)

    run(many_callers())
    assert quotas.callers < 100


async def speaks(stub: Any, metadata: Any = ()) -> bool:
    call = stub.Generate(iter([pb.GenerateRequest(text=ONE + TWO)]), metadata=metadata)
    return any([chunk.audio async for chunk in call])


async def test_principals_have_quotas_of_their_own(serve_front, tmp_path):
    keys = [create(name, tmp_path / "keys.toml") for name in ("alice", "bob")]
    alice, bob = ((("authorization", f"Bearer {key}"),) for key in keys)
    async with serve_front(
        server={"auth": {"keys": tmp_path / "keys.toml"}}, max_chars_per_minute_per_caller=LIMIT
    ) as served:
        assert await speaks(served.stub, alice)
        with pytest.raises(grpc.aio.AioRpcError, match="used up its quota") as raised:
            await speaks(served.stub, alice)
        assert raised.value.code() is EXHAUSTED
        assert await speaks(served.stub, bob)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has the address 127.0.0.2 without setup")
async def test_without_keys_an_address_is_a_caller(serve_front):
    async with (
        serve_front(max_chars_per_minute_per_caller=LIMIT) as served,
        calling_from("127.0.0.2", served.address) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        assert await speaks(served.stub)
        with pytest.raises(grpc.aio.AioRpcError, match="used up its quota"):
            await speaks(served.stub)
        assert await speaks(tts_pb2_grpc.VoxCPMServiceStub(channel))


async def test_there_is_no_quota_by_default(served):
    assert all([await speaks(served.stub) for _ in range(3)])
