"""The engines of a host, as a front uses them. Whole fronts are tested in tests/system/processes/test_fronts.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq
import zmq.asyncio
from support.doubles.fake_engine import INFO, request
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc import progress
from voxcpm_grpc.events import Admitted, Finished, FinishReason
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc import messages as m
from voxcpm_grpc.ipc.sockets import Addresses, bind, unbounded
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.host_link import HostLink, connected_to_host
from voxcpm_grpc.progress import Progress

ENGINE = "engine cpu:0"


@pytest.fixture
def context():
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@dataclass
class PlayedHost:
    """The host of a front, and the front's end of the connection."""

    link: HostLink
    commands: zmq.asyncio.Socket

    async def send(self, *commands: m.Command) -> None:
        for command in commands:
            await self.commands.send(encoding.encode(command))


@asynccontextmanager
async def host_of(context: zmq.asyncio.Context, folder: Path) -> AsyncIterator[PlayedHost]:
    commands: zmq.asyncio.Socket = unbounded(context.socket(zmq.PUSH))
    reports: zmq.asyncio.Socket = unbounded(context.socket(zmq.PULL))
    addresses = Addresses(bind(commands, f"ipc://{folder}/0"), bind(reports, f"ipc://{folder}/1"), "")
    async with connected_to_host(addresses) as link:
        yield PlayedHost(link, commands)


class PlayedEngine:
    """An engine to which the front connects."""

    def __init__(self, context: zmq.asyncio.Context, address: str) -> None:
        self._socket: zmq.asyncio.Socket = unbounded(context.socket(zmq.ROUTER))
        self.address = f"{bind(self._socket, address)}#"  # without a key

    def ready(self, restarts: int) -> m.EngineReady:
        return m.EngineReady(ENGINE, self.address, "3", INFO, restarts)

    async def receive(self, kind: type[m.Submit]) -> m.Submit:
        """The next command of this kind, from the front that the host has named."""
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                front, data = await self._socket.recv_multipart()
                assert front == b"3"
                if isinstance(command := encoding.decode_command(data), kind):
                    return command

    async def send(self, *reports: m.Report) -> None:
        await self._socket.send_multipart([b"3", encoding.encode(list(reports))])


async def test_a_front_follows_the_engine_of_a_replica(context, tmp_path):
    """The last reports of an engine that is lost still arrive, and the next one takes calls."""
    async with host_of(context, tmp_path) as host:
        pool = EnginePool(host.link.engines([ENGINE]))
        starting = asyncio.create_task(pool.start())
        [replica] = pool.replicas
        for number in range(2):
            engine = PlayedEngine(context, f"ipc://{tmp_path}/engine{number}")
            await host.send(engine.ready(number))
            await asyncio.wait_for(starting, HANG_SECONDS)
            await until(lambda: replica.ready)
            assert replica.restarts.count == number, "the host counts them for all fronts, also one that starts later"
            call = pool.generate(request("a", 1))
            submitted = (await engine.receive(m.Submit)).request.id
            admitted = m.CallEvent(submitted, Admitted(queue_seconds=0.0, prompt_tokens=1, cached_tokens=0))
            finished = m.CallEvent(submitted, Finished(reason=FinishReason.STOP, steps=0, engine_seconds=0.0))
            await engine.send(admitted, finished)
            await host.send(m.EngineLost(ENGINE, 40.0))
            async with asyncio.timeout(HANG_SECONDS):
                assert [type(event) async for event in call] == [Admitted, Finished]
            await until(lambda: not replica.ready)
            assert 30.0 < replica.restarts.seconds_left <= 40.0
        await pool.close()


async def test_a_front_reports_the_start_of_engines_that_began_before_it(context, tmp_path):
    steps: list[Progress] = []
    async with host_of(context, tmp_path) as host:
        pool = EnginePool(host.link.engines([ENGINE]))
        await host.send(m.EngineStarting(Progress("the model is loading", source=ENGINE)))
        await host.send(m.EngineLost(ENGINE, 7.0))
        await until(lambda: pool.replicas[0].restarts.seconds_left <= 7.0)
        with progress.reported_to(steps.append):
            starting = asyncio.create_task(pool.start())
        await until(lambda: steps)
        await host.send(m.EngineStarting(Progress("the warm-up runs", source=ENGINE)))
        await until(lambda: len(steps) == 2)
        assert [(step.step, step.source) for step in steps] == [
            ("the model is loading", ENGINE),
            ("the warm-up runs", ENGINE),
        ]
        starting.cancel()
        await asyncio.wait([starting])


async def test_a_pool_that_is_not_closed_does_not_block_the_end(context, tmp_path):
    async with asyncio.timeout(HANG_SECONDS):
        async with host_of(context, tmp_path) as host:
            pool = EnginePool(host.link.engines([ENGINE]))
            await host.send(PlayedEngine(context, f"ipc://{tmp_path}/engine").ready(0))
            await pool.start()
    assert pool.healthy
