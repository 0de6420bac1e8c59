"""An engine of a host, as a front uses it. Whole fronts are tested in tests/system/processes/test_fronts.py."""

from __future__ import annotations

import asyncio

import pytest
import zmq
import zmq.asyncio
from support.fake_engine import INFO
from support.waiting import HANG_SECONDS

from voxcpm_grpc.ipc import messages as m
from voxcpm_grpc.ipc.sockets import Addresses, bind, unbounded
from voxcpm_grpc.pool.host.attached import connected_to_host


@pytest.fixture
def context():
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


async def test_a_front_follows_the_engines_of_its_host(context, tmp_path):
    commands, reports = unbounded(context.socket(zmq.PUSH)), unbounded(context.socket(zmq.PULL))
    addresses = [bind(socket, f"ipc://{tmp_path}/{number}") for number, socket in enumerate((commands, reports))]
    async with connected_to_host(Addresses(*addresses, "")) as host:
        [make_handle] = host.factories(["cpu:0"])
        for number in range(2):
            engine = unbounded(context.socket(zmq.ROUTER))
            address = bind(engine, f"ipc://{tmp_path}/engine{number}")
            ready = m.EngineReady("cpu:0", address, "3", INFO, number)
            await commands.send(m.encode_command(ready))
            handle = make_handle()
            async with asyncio.timeout(HANG_SECONDS):
                assert await handle.start() == INFO
                [restarts] = host.restarts(["cpu:0"])
                assert restarts.count == number, "the host counts them for all fronts, also for one that starts later"
                handle.post(m.AskStats(7))
                front, command = await engine.recv_multipart()
                assert (front, m.decode_command(command)) == (b"3", m.AskStats(7))
                await commands.send(m.encode_command(m.EngineExpected("cpu:0", 40.0)))
                await commands.send(m.encode_command(m.EngineLost("cpu:0")))
                assert [batch async for batch in handle.reports()] == []
            assert 30.0 < restarts.seconds_left <= 40.0
            await handle.close()


async def test_a_handle_that_is_not_closed_does_not_block_the_end(context, tmp_path):
    sockets = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    addresses = (bind(socket, f"ipc://{tmp_path}/{number}") for number, socket in enumerate(sockets))
    async with asyncio.timeout(HANG_SECONDS):
        async with connected_to_host(Addresses(*addresses, "")) as host:
            [make_handle] = host.factories(["cpu:0"])
            handle = make_handle()
    assert handle.name == "engine cpu:0"
