"""Hundreds of registrations of an adapter, beside streams that speak with it, with another one and with none."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from support.engines.checkpoints import TINY
from support.servers.running import ADMIN, serving

from tools.make_lora import write_adapter
from voxcpm_grpc.v1 import admin_pb2, admin_pb2_grpc, tts_pb2_grpc
from voxcpm_grpc.v1 import tts_pb2 as pb

CYCLES = 500, pytest.param(1000, marks=pytest.mark.nightly)
WARM_UP = 200  # cycles, after which memory is compared
RANK = 64  # 0.9 MB of host memory, so that adapters that stay show
MOST_GROWTH = 96 << 20  # bytes of a process; 300 adapters together would be 270 MB
TOLERANCE = 1e-4
PAUSE_SECONDS = 1.0  # of a speaker between its streams: registrations are what is tested, and streams cost more
F32 = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE)
SAMPLING = pb.Sampling(seed=3, inference_timesteps=4, min_steps=4, max_steps=12)


class Caller:
    """Calls both services of a server."""

    def __init__(self, channel: grpc.aio.Channel, admin_channel: grpc.aio.Channel) -> None:
        self._stub: Any = tts_pb2_grpc.VoxCPMServiceStub(channel)
        self._admin: Any = admin_pb2_grpc.VoxCPMAdminServiceStub(admin_channel)

    async def register(self, name: str, source: Path) -> None:
        await self._admin.RegisterLora(admin_pb2.RegisterLoraRequest(name=name, source=str(source)))

    async def unregister(self, name: str) -> None:
        await self._admin.UnregisterLora(admin_pb2.UnregisterLoraRequest(name=name))

    async def loras(self) -> list[admin_pb2.LoraInfo]:
        return list((await self._admin.ListLoras(admin_pb2.ListLorasRequest())).loras)

    async def stats(self) -> admin_pb2.ServerStats:
        return (await self._admin.GetStats(admin_pb2.GetStatsRequest())).stats

    def stream(self, lora: str) -> Any:
        turn = pb.TurnConfig(sampling=SAMPLING, lora=lora)
        messages = [
            pb.GenerateRequest(config=pb.GenerateConfig(turn=turn, output=F32)),
            pb.GenerateRequest(text="The quick brown fox."),
        ]
        return self._stub.Generate(iter(messages))

    async def audio(self, lora: str) -> np.ndarray:
        return np.frombuffer(b"".join([reply.audio async for reply in self.stream(lora)]), "<f4")


async def resident_bytes(caller: Caller) -> dict[int, int]:
    """The memory of the server and of its engine, by process id."""
    stats = await caller.stats()
    processes = [stats.front.process_id, *(engine.process_id for engine in stats.engines)]
    return {process: psutil.Process(process).memory_info().rss for process in processes}


def same(audio: np.ndarray, expected: np.ndarray) -> bool:
    return len(audio) == len(expected) and bool(np.allclose(audio, expected, atol=TOLERANCE, rtol=0))


async def cycles(caller: Caller, source: Path, expected: np.ndarray, count: int) -> None:
    """Register and unregister an adapter, every tenth time below a stream that has begun to speak with it."""
    for number in range(count):
        await caller.register("changing", source)
        if number % 10:
            await caller.unregister("changing")
            continue
        parts: list[bytes] = []
        async for reply in caller.stream("changing"):
            if not parts:
                await caller.unregister("changing")
            parts.append(reply.audio)
        assert same(np.frombuffer(b"".join(parts), "<f4"), expected)


@pytest.mark.parametrize("count", CYCLES)
async def test_registrations_lose_no_stream_and_no_memory(tmp_path, count):
    config = json.loads((TINY / "config.json").read_text("utf-8"))
    sources = tmp_path / "sources"
    for seed, name in enumerate(("steady", "changing")):
        write_adapter(config, sources / name, RANK, "all", seed)
    flags = ["--admin.listen", "127.0.0.1:0", "--admin.lora-sources", str(sources), "--engine.max-loras", "2"]
    with serving(tmp_path / "voices", *flags) as server:
        [admin] = re.findall(ADMIN, server.log)
        async with grpc.aio.insecure_channel(server.address) as channel, grpc.aio.insecure_channel(admin) as other:
            caller = Caller(channel, other)
            for name in ("steady", "changing"):
                await caller.register(name, sources / name)
            expected = {name: await caller.audio(name) for name in ("", "steady", "changing")}
            assert not same(expected[""], expected["steady"]) and not same(expected[""], expected["changing"])
            await caller.unregister("changing")

            spoken, over = 0, asyncio.Event()

            async def speak(lora: str) -> None:
                nonlocal spoken
                while not over.is_set():
                    assert same(await caller.audio(lora), expected[lora])
                    spoken += 1
                    await asyncio.sleep(PAUSE_SECONDS)

            async with asyncio.TaskGroup() as group:
                for lora in ("", "steady", "steady"):
                    group.create_task(speak(lora))
                await cycles(caller, sources / "changing", expected["changing"], WARM_UP)
                before, files = await resident_bytes(caller), (await caller.stats()).front.open_files
                await cycles(caller, sources / "changing", expected["changing"], count - WARM_UP)
                after = await resident_bytes(caller)
                over.set()
            assert spoken
            growth = {process: after[process] - before[process] for process in before}
            assert max(growth.values()) < MOST_GROWTH, growth
            assert (await caller.stats()).front.open_files <= files
            assert [info.name for info in await caller.loras()] == ["steady"]
        assert not server.fault()
