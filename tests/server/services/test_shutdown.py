"""The end of a server: health, the drain delay, calls in progress, and calls that are cut off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.clients.grpc_types import EOF, health_stub, message_of
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_client import Aborted, AsyncClient, Unavailable
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.rpc import delivery
from voxcpm_server.services import server

SERVICE = "voxcpm_grpc.v1.VoxCPMService"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
PATIENT = {"drain_seconds": NEVER_SECONDS, "drain_delay_seconds": NEVER_SECONDS}
POLICY = {"maxAttempts": 4, "initialBackoff": "10s", "maxBackoff": "10s", "backoffMultiplier": 1}


async def check(channel: grpc.aio.Channel, service: str = "") -> Any:
    answer = await health_stub(channel).Check(health_pb2.HealthCheckRequest(service=service))
    return answer.status


@asynccontextmanager
async def task(work: Any) -> AsyncIterator[asyncio.Task]:
    running = asyncio.create_task(work)
    try:
        yield running
    finally:
        running.cancel()


async def test_new_calls_are_served_during_the_drain_delay(serve_front):
    async with serve_front(server=PATIENT) as served, task(served.rpc.withdraw()) as withdrawing:
        assert [await check(served.channel, name) for name in ("", SERVICE, "liveness")] == [
            NOT_SERVING,
            NOT_SERVING,
            SERVING,
        ]
        assert (await served.generate("Hello."))[-1].HasField("summary")
        async with grpc.aio.insecure_channel(served.address, [("grpc.use_local_subchannel_pool", 1)]) as other:
            await tts_pb2_grpc.VoxCPMServiceStub(other).GetModelInfo(pb.GetModelInfoRequest())
        served.rpc.set_ready(True)  # an engine that comes back changes nothing
        assert await check(served.channel) == NOT_SERVING
        assert not withdrawing.done()


async def test_the_drain_delay_is_part_of_the_drain(serve_front):
    async with serve_front(server={"drain_seconds": 0, "drain_delay_seconds": NEVER_SECONDS}) as served:
        async with asyncio.timeout(HANG_SECONDS):
            await served.rpc.withdraw()
            await served.rpc.drain()


async def test_a_call_in_progress_finishes_and_new_calls_go_to_another_server(serve_front, fake):
    """Through a standard client, whose policy would wait for 10 s before a retry."""
    policy: dict[str, Any] = {"loadBalancingConfig": [{"round_robin": {}}]}
    policy["methodConfig"] = [{"name": [{}], "retryPolicy": {**POLICY, "retryableStatusCodes": ["UNAVAILABLE"]}}]
    async with serve_front(fake(hold_after=1), server=PATIENT) as leaving, serve_front() as staying:
        call = leaving.stub.Generate(iter([pb.GenerateRequest(text="Hello.")]))
        await call.read()
        target = "ipv4:" + ",".join((leaving.address, staying.address))
        options = [("grpc.service_config", json.dumps(policy)), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(target, options) as channel:
            stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
            for _ in range(4):
                await stub.GetModelInfo(pb.GetModelInfoRequest())
            async with task(leaving.rpc.drain()) as draining:
                await until(lambda: refuses(leaving))
                lost = [await is_lost(stub) for _ in range(20)]
                assert sum(lost) < 4
                assert not draining.done()
                leaving.pool.release()
                while not (await call.read()).HasField("summary"):
                    pass
                async with asyncio.timeout(HANG_SECONDS):
                    await draining


@pytest.mark.parametrize("fails", [False, True], ids=["ok", "error"])
async def test_only_during_the_drain_a_status_waits_for_the_acknowledgement_of_the_last_message(
    serve_front, fake, monkeypatch, fails
):
    """The connection ends with the status, and proxies may lose a status if the connection ends as they write."""
    monkeypatch.setattr(delivery, "ACKNOWLEDGE_SECONDS", NEVER_SECONDS)
    released = asyncio.Event()

    async def messages() -> AsyncIterator[pb.GenerateRequest]:
        yield pb.GenerateRequest(text="Hello.")
        yield pb.GenerateRequest(flush=pb.Flush())
        await released.wait()
        if fails:
            yield pb.GenerateRequest(config=pb.GenerateConfig())

    async with serve_front() as serving, asyncio.timeout(HANG_SECONDS):
        assert (await serving.generate("Hello."))[-1].HasField("summary")
    async with serve_front(fake(hold_after=1), server=PATIENT) as served, asyncio.timeout(HANG_SECONDS):
        call = served.stub.Generate(messages())
        while not (await call.read()).audio:
            pass
        async with task(served.rpc.drain()):
            await until(lambda: refuses(served))
            released.set()
            if not fails:
                served.pool.release()
                while not (await call.read()).HasField("summary"):
                    pass
            async with task(call.code()) as status:
                await asyncio.wait([status], timeout=0.6)
                assert not status.done()
        call.cancel()


async def test_a_server_leaves_in_a_moment_without_new_calls(serve_front, monkeypatch):
    monkeypatch.setattr(server, "QUIET_SECONDS", NEVER_SECONDS)
    monkeypatch.setattr(server, "QUIET_WAIT_SECONDS", NEVER_SECONDS)
    async with serve_front(server=PATIENT) as served:
        await served.stub.GetModelInfo(pb.GetModelInfoRequest())
        async with task(served.rpc.drain()) as draining:
            for _ in range(3):
                await served.stub.GetModelInfo(pb.GetModelInfoRequest())
            assert not draining.done()
    monkeypatch.undo()
    async with serve_front(server=PATIENT) as served, task(ask_forever(served)):
        await until(lambda: served.rpc.calls.refused is False)
        async with asyncio.timeout(HANG_SECONDS):
            await served.rpc.drain()  # although there is no such moment


async def ask_forever(served) -> None:
    while True:
        with suppress(grpc.aio.AioRpcError):
            await served.stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=9)


async def is_lost(stub: Any) -> bool:
    """Make a call, and return True if grpc.aio lost it, as it does in the milliseconds in which it stops to listen.

    Such a call ends with CANCELLED or is never answered (github.com/grpc/grpc/issues/41785).
    """
    try:
        await stub.GetModelInfo(pb.GetModelInfoRequest(), timeout=9)
    except grpc.aio.AioRpcError as error:
        if error.code() not in (grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise
        return True
    return False


def refuses(served) -> bool:
    """True if a server refuses new calls."""
    return served.rpc.calls.refused


async def test_open_watches_and_reflection_do_not_delay_the_end(serve_front):
    async with serve_front(server=PATIENT) as served:
        watch = health_stub(served.channel).Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == SERVING
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(served.channel)
        reflection = stub.ServerReflectionInfo()
        await reflection.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        assert (await reflection.read()).list_services_response.service
        async with asyncio.timeout(HANG_SECONDS):
            await served.rpc.drain()
        assert (await watch.read()).status == NOT_SERVING
        assert await watch.read() == await reflection.read() == EOF
        assert await watch.code() == await reflection.code() == grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("made", "code", "words"),
    [
        (3, grpc.StatusCode.ABORTED, "the audio that was sent is good"),
        (0, grpc.StatusCode.UNAVAILABLE, "no audio was sent, retry elsewhere"),
    ],
)
async def test_a_call_that_is_cut_off_says_so(serve_front, fake, details_of, made, code, words):
    async with serve_front(fake(hold_after=made), server={"drain_seconds": 0.125}) as served:
        call = served.stub.Generate(iter([pb.GenerateRequest(text="Hello.")]))
        await call.read()
        await until(lambda: served.pool.running and served.pool.steps == made)
        await served.pool.stalled()
        async with asyncio.timeout(HANG_SECONDS):
            await served.rpc.drain()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await call.read() is not EOF:
                pass
        assert caught.value.code() is code
        assert "shutting down" in message_of(caught.value)
        assert "drain_seconds, 0.125 s" in message_of(caught.value)
        assert words in message_of(caught.value)
        assert details_of(caught.value).pushback_ms == (None if made else 0)
        await until(lambda: not served.pool.running)


@pytest.mark.parametrize("made", [3, 0])
async def test_a_second_signal_tells_the_streams_that_it_ends(serve_front, fake, details_of, made):
    async with serve_front(fake(hold_after=made), server=PATIENT) as served:
        call = served.stub.Generate(iter([pb.GenerateRequest(text="Hello.")]))
        await call.read()
        await until(lambda: served.pool.running and served.pool.steps == made)
        await served.pool.stalled()
        async with task(served.rpc.drain()) as draining, asyncio.timeout(HANG_SECONDS):
            await until(lambda: served.rpc.calls.refused)
            draining.cancel()
            await served.rpc.cut_off()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            while await call.read() is not EOF:
                pass
        assert caught.value.code() is (grpc.StatusCode.ABORTED if made else grpc.StatusCode.UNAVAILABLE)
        assert "shutting down, and a second signal" in message_of(caught.value)
        assert "drain_seconds" not in message_of(caught.value)
        assert details_of(caught.value).pushback_ms == (None if made else 0)


@pytest.mark.parametrize(("made", "error"), [(3, Aborted), (0, Unavailable)])
async def test_the_python_client_reports_a_call_that_is_cut_off(serve_front, fake, made, error):
    async with (
        serve_front(fake(hold_after=made), server={"drain_seconds": 0}) as served,
        AsyncClient(served.address, timeout=HANG_SECONDS, retries=0) as client,
        task(client.say("Hello.")) as speaking,
    ):
        await until(lambda: served.pool.running and served.pool.steps == made)
        await served.pool.stalled()
        await served.rpc.drain()
        with pytest.raises(error, match="shutting down"):
            await speaking


async def test_an_upload_that_is_cut_off_can_be_sent_again(serve_front, details_of):
    async with serve_front(server={"drain_seconds": 0}) as served:
        call = served.stub.AddReference()
        await call.write(pb.AddReferenceRequest(config=pb.AddReferenceConfig()))
        await until(lambda: len(served.rpc.calls))
        await served.rpc.drain()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert details_of(caught.value).pushback_ms == 0
