"""A host of fake engines with several fronts, whose pools are used from the test over sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from support.doubles.fake_engine import request
from support.doubles.pools import Launcher, patient
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.errors import VoxCPMError, code_of, from_code
from voxcpm_grpc.events import AudioChunk
from voxcpm_grpc.ipc.sockets import Addresses
from voxcpm_grpc.logs import LogOptions
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.host import Host
from voxcpm_grpc.pool.engines.host_link import connected_to_host, set_up
from voxcpm_grpc.pool.engines.local import LocalEngines
from voxcpm_grpc.request import Adapter


class _Service:
    """Answers the requests of a test about one pool; `turns` have an adapter until they are told to end."""

    def __init__(self, pool: EnginePool) -> None:
        self.pool = pool
        self.turns: dict[str, Adapter] = {}

    async def answer(self, method: str, *arguments: str) -> object:
        return await getattr(self, method)(*arguments)

    async def pid(self) -> int:
        return os.getpid()

    async def names(self) -> list[str]:
        return [adapter.name for adapter in self.pool.adapters.registered]

    async def engines(self) -> list[list[str]]:
        """The fingerprints of the adapters that each engine that is ready has read."""
        return [sorted(one.adapters) for one in self.pool.replicas if one.ready]

    async def register(self, name: str, directory: str) -> str:
        return (await self.pool.adapters.register(name, directory, Path(directory))).fingerprint

    async def unregister(self, name: str) -> None:
        await self.pool.adapters.unregister(name)

    async def choose(self, turn: str, name: str) -> str:
        self.turns[turn] = self.pool.adapters.find(name)
        return self.turns[turn].fingerprint

    async def drop(self, turn: str) -> None:
        del self.turns[turn]

    async def say(self, name: str, turn: str = "") -> float:
        """The first sample of a request with the adapter of a name, or with that of a turn."""
        adapter = self.turns[turn] if turn else self.pool.adapters.find(name)
        call = self.pool.generate(request("r", 2, adapter=adapter))
        samples = [float(event.samples[0]) async for event in call if isinstance(event, AudioChunk)]
        return samples[0]


def _front(addresses: Addresses, restarted: bool, address: Path, engines: tuple[str, ...]) -> None:
    """The main function of a front, which serves at `address`."""
    set_up(LogOptions("warning"))
    asyncio.run(_serve(addresses, address, engines))


async def _serve(addresses: Addresses, address: Path, engines: tuple[str, ...]) -> None:
    async with connected_to_host(addresses) as host:
        pool = EnginePool(host.engines(engines))
        service = _Service(pool)

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer):
                try:
                    reply = {"result": await service.answer(*json.loads(await reader.readline()))}
                except VoxCPMError as error:
                    reply = {"error": [code_of(error), error.message]}
                writer.write(json.dumps(reply).encode() + b"\n")
                await writer.drain()

        await pool.start()
        server = await asyncio.start_unix_server(answer, address)
        host.send_ready(pool.info)
        await host.stopped.wait()
        server.close()
        await pool.close()


class RemoteFront:
    """A front of the host. Its methods are those of `_Service`, and raise the errors of its pool."""

    def __init__(self, address: Path) -> None:
        self.address = address

    async def ask(self, method: str, *arguments: str) -> Any:
        async with asyncio.timeout(HANG_SECONDS):
            reader, writer = await asyncio.open_unix_connection(self.address)
            with contextlib.closing(writer):
                writer.write(json.dumps([method, *arguments]).encode() + b"\n")
                reply = json.loads(await reader.readline())
        if "error" in reply:
            raise from_code(*reply["error"])
        return reply["result"]

    async def reaches(self, expected: object, method: str, *arguments: str) -> None:
        """Wait until a method returns the expected result."""
        async with asyncio.timeout(HANG_SECONDS):
            found = await self.ask(method, *arguments)
            while found != expected:
                await asyncio.sleep(0.01)
                found = await self.ask(method, *arguments)

    async def replaced(self) -> None:
        """Kill the process, and wait until another one serves."""
        lost = await self.ask("pid")
        self.address.unlink()
        os.kill(lost, signal.SIGKILL)
        await until(self.address.exists)


@contextlib.asynccontextmanager
async def remote_fronts(
    folder: Path, count: int, *models: Mapping[str, Launcher], loras: Sequence[Sequence[str]] = ()
) -> AsyncIterator[list[RemoteFront]]:
    """Fronts of a host. `models`: the engines of each model by name; all fronts use the last model."""
    settings, own = patient(restart_seconds=0.2), loras or [()] * len(models)
    host = Host([LocalEngines(one, settings, names) for one, names in zip(models, own, strict=True)], settings)
    addresses = [folder / str(number) for number in range(count)]
    fronts = {
        f"front {number}": partial(_front, address=address, engines=tuple(models[-1]))
        for number, address in enumerate(addresses)
    }
    try:
        await host.start(fronts, drain_seconds=1.0)
        yield [RemoteFront(address) for address in addresses]
    finally:
        await host.close()
