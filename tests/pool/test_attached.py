"""An engine of a host, as one of the host's fronts meets it. Whole fronts are in tests/server/test_fronts.py."""

from __future__ import annotations

import asyncio

import pytest
import zmq
import zmq.asyncio
from support.fake_engine import INFO
from support.waiting import HANG_SECONDS

from voxcpm_grpc.ipc import messages as m
from voxcpm_grpc.ipc.child_process import Addresses, bind, mailbox
from voxcpm_grpc.pool.host.attached import HostLine, joined


@pytest.fixture
def context():
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


async def test_every_life_of_an_engine_leaves_no_file(context, tmp_path):
    host, heard = mailbox(context), mailbox(context)
    host.bind("inproc://front")
    heard.connect("inproc://front")
    line = HostLine(context, heard)
    [launch] = line.launches(["cpu:0"])
    listening = asyncio.create_task(line.listen())
    for life in range(2):
        address = f"ipc://{tmp_path}/{life}"
        handle, engine = launch(), mailbox(context)
        engine.connect(address)
        await engine.send(m.encode_reports([m.Ready(INFO)]))
        await host.send(m.encode_command(m.EngineCame("cpu:0", address)))
        async with asyncio.timeout(HANG_SECONDS):
            assert await handle.start() == INFO
        assert not list(tmp_path.iterdir())
        await host.send(m.encode_command(m.EngineWent("cpu:0")))
        async with asyncio.timeout(HANG_SECONDS):
            assert [batch async for batch in handle.reports()] == []
        await handle.close()
    listening.cancel()
    await asyncio.wait([listening])


async def test_an_engine_that_was_forgotten_does_not_hold_up_the_end(context, tmp_path):
    sockets = mailbox(context), context.socket(zmq.PULL)
    addresses = Addresses(*(bind(socket, f"ipc://{tmp_path}/{number}") for number, socket in enumerate(sockets)))
    async with asyncio.timeout(HANG_SECONDS):
        async with joined(addresses) as line:
            [launch] = line.launches(["cpu:0"])
            forgotten = launch()
    assert forgotten.name == "engine cpu:0"
