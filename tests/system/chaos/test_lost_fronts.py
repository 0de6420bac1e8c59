"""The requests of a front that dies leave the engines, also those that have changed engines before.

The end of its process tells the host so: the silence of a front counts only after `NEVER_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from support.clients.grpc_types import EOF
from support.clients.unread_streams import CLOSE, SMALL_WINDOW
from support.doubles.fake_engine import MakeFake
from support.doubles.pools import Launcher, engines_of, patient
from support.engines.recorded_stats import recorded_stats
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_server.fronts import running_fronts

ATTEMPTS = 6
STREAMS = 12
ALONE = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0), *SMALL_WINDOW]  # a connection of its own
ENDLESS = pb.TurnConfig(sampling=pb.Sampling(max_steps=1000))  # a paused stream has not ended when the test ends
MESSAGES = [
    pb.GenerateRequest(config=pb.GenerateConfig(turn=ENDLESS, pacing=CLOSE)),
    pb.GenerateRequest(text="Hello there."),
]
MORE = 300 * 960  # samples of a stream that goes on, more than all buffers on its way hold, and less than it has


@dataclass(frozen=True)
class Fronts:
    """A host with two fronts and two engines, which record their statistics."""

    address: str
    launchers: list[Launcher]
    folder: Path

    def running(self) -> int:
        """The requests that both engines have."""
        return sum(recorded_stats(self.folder, one.pid).running for one in self.launchers)

    async def move_streams(self) -> None:
        """End the first engine, whose streams go on on the second one, and wait until it is back."""
        first, second = self.launchers
        lost = first.pid
        assert recorded_stats(self.folder, lost).running, "no stream goes on"
        first.kill()
        await until(lambda: recorded_stats(self.folder, second.pid).running == STREAMS)
        await until(lambda: first.processes[-1].pid not in (None, lost) and (self.folder / f"{first.pid}").exists())

    def front(self) -> psutil.Process:
        children = psutil.Process().children()
        [front] = [one for one in children if one.cmdline()[:1] and one.cmdline()[0].startswith("voxcpm-grpc front 0")]
        return front


@contextlib.asynccontextmanager
async def two_fronts(folder: Path) -> AsyncIterator[Fronts]:
    stats = folder / "stats"
    stats.mkdir(parents=True)
    launchers = [Launcher([MakeFake(step_seconds=0.002)], name=f"engine {one}", folder=stats) for one in range(2)]
    supervision = patient(restart_seconds=0.2)
    settings = Settings(
        listen="127.0.0.1:0",
        fronts=2,
        drain_seconds=0.0,
        drain_delay_seconds=0,
        voices=VoiceSettings(url=str(folder / "voices")),
        supervision=supervision,
    )
    async with running_fronts(settings, engines=[engines_of(launchers, supervision)]) as running:
        yield Fronts(running.address, launchers, stats)


async def spoken(stack: contextlib.AsyncExitStack, address: str) -> Any:
    """A stream on a connection of its own that has delivered audio."""
    channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, ALONE))
    stub: Any = tts_pb2_grpc.VoxCPMServiceStub(channel)
    call = stub.Generate(iter(MESSAGES), timeout=HANG_SECONDS)
    while not (await call.read()).audio:
        pass
    return call


async def goes_on(call: Any) -> bool:
    """True if a stream goes on, and False if its connection is lost."""
    heard = 0
    try:
        while heard < MORE:
            message = await call.read()
            assert message is not EOF
            heard += message.sample_count
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE, error
        return False
    return True


async def loss(fronts: Fronts) -> bool:
    """Wait until the requests of a front that dies have left the engines. False if it had none or all."""
    async with asyncio.timeout(HANG_SECONDS), contextlib.AsyncExitStack() as stack:
        calls = [await spoken(stack, fronts.address) for _ in range(STREAMS)]
        await fronts.move_streams()
        fronts.front().kill()
        kept = sum(await asyncio.gather(*map(goes_on, calls)))
        await until(lambda: fronts.running() == kept)
    return 0 < kept < STREAMS


async def test_the_requests_of_a_front_that_dies_leave_the_engines(tmp_path: Path) -> None:
    for attempt in range(ATTEMPTS):
        async with two_fronts(tmp_path / f"{attempt}") as fronts:
            if await loss(fronts):
                return
    pytest.fail("the system gave all streams to one front")
