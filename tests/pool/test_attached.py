"""An engine of a host, as a front uses it. Whole fronts are tested in tests/system/processes/test_fronts.py."""

from __future__ import annotations

import asyncio

import pytest
import zmq
import zmq.asyncio
from support.fake_engine import INFO
from support.waiting import HANG_SECONDS

from voxcpm_grpc.ipc import messages as m
from voxcpm_grpc.ipc.channel import bind, pair_socket
from voxcpm_grpc.ipc.child_process import Addresses
from voxcpm_grpc.pool.host.attached import HostConnection, connected_to_host


@pytest.fixture
def context():
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


async def test_no_engine_leaves_the_file_of_its_socket_behind(context, tmp_path):
    host, front = pair_socket(context), pair_socket(context)
    host.bind("inproc://front")
    front.connect("inproc://front")
    connection = HostConnection(context, front)
    [make_handle] = connection.factories(["cpu:0"])
    receiving = asyncio.create_task(connection.receive())
    for number in range(2):
        address = f"ipc://{tmp_path}/{number}"
        handle, engine = make_handle(), pair_socket(context)
        engine.connect(address)
        await engine.send(m.encode_reports([m.Ready(INFO)]))
        await host.send(m.encode_command(m.EngineReady("cpu:0", address, number)))
        async with asyncio.timeout(HANG_SECONDS):
            assert await handle.start() == INFO
        [restarts] = connection.restarts(["cpu:0"])
        assert restarts.count == number, "the host counts them for all fronts, also for one that starts later"
        assert not list(tmp_path.iterdir())
        await host.send(m.encode_command(m.EngineExpected("cpu:0", 40.0)))
        await host.send(m.encode_command(m.EngineLost("cpu:0")))
        async with asyncio.timeout(HANG_SECONDS):
            assert [batch async for batch in handle.reports()] == []
        assert 30.0 < restarts.seconds_left <= 40.0
        await handle.close()
    receiving.cancel()
    await asyncio.wait([receiving])


async def test_a_handle_that_is_not_closed_does_not_block_the_end(context, tmp_path):
    sockets = pair_socket(context), context.socket(zmq.PULL)
    addresses = Addresses(*(bind(socket, f"ipc://{tmp_path}/{number}") for number, socket in enumerate(sockets)))
    async with asyncio.timeout(HANG_SECONDS):
        async with connected_to_host(addresses) as host:
            [make_handle] = host.factories(["cpu:0"])
            handle = make_handle()
    assert handle.name == "engine cpu:0"
