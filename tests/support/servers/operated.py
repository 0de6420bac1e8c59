"""A running server with its admin service, and one engine that makes audio without a model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from support.clients.unread_streams import CLOSE, SMALL_WINDOW
from support.doubles.fake_engine import MakeFake
from support.doubles.pools import Launcher, pool_with
from support.servers.ports import free_port
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.settings.operation import AdminSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import admin_pb2, admin_pb2_grpc, tts_pb2_grpc
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.app import Running, running_server

MAX_STEPS = 1000
SLOTS = 3
ENGINE = MakeFake(slots=SLOTS)


@dataclass
class Operated:
    """A running server, its admin service, and its engine. `channel` is that of the admin port."""

    stub: Any
    admin: Any
    serving: grpc.aio.Channel
    channel: grpc.aio.Channel
    launcher: Launcher
    running: Running
    admin_address: str

    async def stats(self, **options: Any) -> admin_pb2.ServerStats:
        return (await self.admin.GetStats(admin_pb2.GetStatsRequest(), **options)).stats

    async def stats_when(self, condition: Any) -> admin_pb2.ServerStats:
        """The first statistics for which a condition holds."""
        async with asyncio.timeout(HANG_SECONDS):
            while True:
                if condition(found := await self.stats()):
                    return found

    def speak(self, text: str, steps: int = MAX_STEPS, lora: str | None = None, **options: Any) -> Any:
        """A stream with a short lead: while it is not read, the engine does not make all of its audio."""
        turn = pb.TurnConfig(sampling=pb.Sampling(max_steps=steps), lora=lora)
        config = pb.GenerateConfig(turn=turn, pacing=CLOSE)
        messages = [pb.GenerateRequest(config=config), pb.GenerateRequest(text=text)]
        return self.stub.Generate(iter(messages), **options)


@asynccontextmanager
async def operated(
    folder: Path, make: MakeFake = ENGINE, lora_sources: Sequence[object] = (), *, engines: int = 1, **settings: Any
) -> AsyncIterator[Operated]:
    """A server with engines, by default one, of SLOTS slots, which make audio without a model."""
    launchers = [Launcher([make], name=f"engine {number}") for number in range(engines)]
    admin = f"127.0.0.1:{free_port()}"
    made = Settings(
        listen="127.0.0.1:0",
        admin=AdminSettings(
            listen=admin, lora_sources=tuple(map(str, lora_sources)), lora_cache=folder.with_name("lora cache")
        ),
        voices=VoiceSettings(url=str(folder)),
        drain_seconds=0.0,
        **{"limits": LimitSettings(trim_leading_silence_seconds=0), **settings},  # its first chunk is silent
    )
    async with (
        running_server(made, pool=pool_with(*launchers)) as running,
        grpc.aio.insecure_channel(running.address, SMALL_WINDOW) as channel,
        grpc.aio.insecure_channel(admin) as admin_channel,
    ):
        yield Operated(
            tts_pb2_grpc.VoxCPMServiceStub(channel),
            admin_pb2_grpc.VoxCPMAdminServiceStub(admin_channel),
            channel,
            admin_channel,
            launchers[0],
            running,
            admin,
        )
