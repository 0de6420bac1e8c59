"""A server with two engines under a random mix of callers: well-behaved, stalled, slow, hostile and leaving.

It runs for 15 s, or for as many seconds as VOXCPM_SOAK_SECONDS says. VOXCPM_SOAK_SEED repeats a run.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from support.clients.grpc_types import CLIENT_TOO_LATE
from support.clients.raw_calls import Heard, opened, read
from support.clients.unread_streams import CLOSE
from support.doubles.pools import patient
from support.engines.checkpoints import TINY
from support.engines.recorded_stats import RecordStats, recorded_stats
from support.hostile.lying_files import mp4_bomb
from support.servers.processes import children
from support.servers.uploads import recording, upload
from support.servers.waiting import HANG_SECONDS, until

from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc
from voxcpm_grpc.worker.main import LoadEngine
from voxcpm_server.app import Running, running_server

SECONDS = float(os.environ.get("VOXCPM_SOAK_SECONDS", "15"))
SEED = int(os.environ.get("VOXCPM_SOAK_SEED", str(random.randrange(1 << 32))))
CALLERS = 10
SLOTS = 3
ENGINES = ("a", "b")
WRITE_SECONDS = 6.0
TOLERANCE = 1e-4
FEW_FILES = 16  # far fewer than calls: engines that have started since, and connections that close later
MOST_GROWTH = 96 << 20  # bytes of memory: caches and pools of free memory grow for a while

Code = grpc.StatusCode
BUSY = {Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE}  # before any audio, and safe to retry
SHORT = pb.TurnConfig(sampling=pb.Sampling(seed=7, inference_timesteps=4, min_steps=3, max_steps=12))
F32 = pb.AudioFormat(encoding=pb.AUDIO_ENCODING_PCM_F32LE)

pytestmark = pytest.mark.timeout(SECONDS * 2 + 900)


def configured(continuity: pb.ContinuityMode, pacing: pb.Pacing | None = None, **fields: Any) -> pb.GenerateConfig:
    segmentation = pb.Segmentation(continuity=continuity)
    return pb.GenerateConfig(turn=SHORT, output=F32, segmentation=segmentation, pacing=pacing, **fields)


CARRY, INDEPENDENT = pb.CONTINUITY_MODE_CARRY, pb.CONTINUITY_MODE_INDEPENDENT
SPEECHES = (
    (configured(INDEPENDENT), "One sentence. Another one that is longer. A third."),
    (configured(CARRY), "Every sentence continues. The one before it."),
    (configured(CARRY, CLOSE), "Little may be made ahead of me. So I take a while, and I rest between my chunks."),
    (configured(INDEPENDENT, CLOSE), "A short lead. And no context at all. Four. Five. Six."),
)


@dataclass
class Soak:
    """The server, the audio that each speech has when nothing disturbs it, and the outcomes so far."""

    address: str
    running: Running
    processes: dict[str, EngineProcess]
    recorded: Path
    draw: random.Random
    expected: list[np.ndarray] = field(default_factory=list)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    ends: float = 0.0

    @asynccontextmanager
    async def stub(self) -> AsyncIterator[tts_pb2_grpc.VoxCPMServiceStub]:
        """A client with a connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            yield tts_pb2_grpc.VoxCPMServiceStub(channel)

    def note(self, actor: str, heard: Heard) -> None:
        self.outcomes[actor, heard.code.name] += 1

    def check(self, heard: Heard, expected: np.ndarray) -> None:
        """The audio is right as far as it goes, and the status tells whether a retry is safe."""
        audio = heard.waveform
        assert len(audio) <= len(expected)
        np.testing.assert_allclose(audio, expected[: len(audio)], atol=TOLERANCE, rtol=0)
        if heard.code is Code.OK:
            assert len(audio) == len(expected)
        elif heard.code in BUSY:
            assert not len(audio), f"{heard.code} invites a retry after {len(audio)} samples: {heard.details}"
            assert heard.pushback is not None
        else:
            assert heard.code is Code.ABORTED, heard
            assert heard.pushback is None


def said(number: int) -> tuple[pb.GenerateRequest, pb.GenerateRequest, pb.GenerateRequest]:
    config, text = SPEECHES[number]
    return pb.GenerateRequest(config=config), pb.GenerateRequest(text=text), pb.GenerateRequest(finish=pb.Finish())


# ---- the callers


async def listens(soak: Soak) -> Heard:
    number = soak.draw.randrange(len(SPEECHES))
    heard = Heard()
    async with soak.stub() as stub:
        await read(await opened(stub, *said(number)), heard)
    soak.check(heard, soak.expected[number])
    return heard


async def stalls(soak: Soak) -> Heard:
    """Reads a little, nothing for a while, and then the rest."""
    number, heard = soak.draw.randrange(len(SPEECHES)), Heard()
    async with soak.stub() as stub:
        call = await opened(stub, *said(number))
        await read(call, heard, messages=soak.draw.randrange(3))
        await asyncio.sleep(soak.draw.choice((0.5, 2.0, 2 * WRITE_SECONDS)))
        if soak.draw.random() < 0.3:
            call.cancel()
            return Heard(Code.CANCELLED)
        await read(call, heard)
    soak.check(heard, soak.expected[number])
    return heard


async def leaves(soak: Soak) -> Heard:
    """Cancels, or closes its connection, at any moment."""
    async with soak.stub() as stub:
        call = await opened(stub, *said(soak.draw.randrange(len(SPEECHES))))
        await read(call, Heard(), messages=soak.draw.randrange(5))
        if soak.draw.random() < 0.5:
            call.cancel()
    return Heard(Code.CANCELLED)


async def interrupts(soak: Soak) -> Heard:
    """Interrupts its speech, and speaks on."""
    heard = Heard()
    config, text, _ = said(soak.draw.randrange(len(SPEECHES)))
    async with soak.stub() as stub:
        call = await opened(stub, config, text)
        await read(call, heard, messages=soak.draw.randrange(1, 4))
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(pb.GenerateRequest(interrupt=pb.Interrupt(tag="stop")))
            await call.write(pb.GenerateRequest(text="Something else."))
            await call.write(pb.GenerateRequest(finish=pb.Finish()))
        rest = await read(call, heard)
    if heard.code is Code.OK:
        assert [chunk.interrupted.tag for chunk in rest if chunk.HasField("interrupted")] == ["stop"]
        assert rest[-1].HasField("summary")
    else:
        assert heard.code in BUSY | {Code.ABORTED}, heard
        assert heard.code is Code.ABORTED or not len(heard.waveform), heard
    return heard


async def runs_late(soak: Soak) -> Heard:
    """Has a deadline that may be too short."""
    number, heard = soak.draw.randrange(len(SPEECHES)), Heard()
    async with soak.stub() as stub:
        call = await opened(stub, *said(number), seconds=soak.draw.choice((0.02, 0.2, 1.0)))
        await read(call, heard)
    if heard.code is not Code.DEADLINE_EXCEEDED and heard.details != CLIENT_TOO_LATE:
        soak.check(heard, soak.expected[number])
    return heard


async def uploads(soak: Soak) -> Heard:
    """Uploads a reference slowly, and deletes it or leaves in the middle."""
    data, heard = recording(soak.draw.randrange(1 << 30), samples=24_000), Heard()
    pause, leaving = soak.draw.choice((0.0, 0.05)), soak.draw.random() < 0.3
    async with soak.stub() as stub:
        call: Any = stub.AddReference(timeout=HANG_SECONDS)
        messages = list(upload(pb.AddReferenceRequest, pb.AddReferenceConfig(), (0, data), size=6000))
        with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            for message in messages[: len(messages) // 2 if leaving else None]:
                await call.write(message)
                await asyncio.sleep(pause)
            if leaving:
                return Heard(Code.CANCELLED)
            await call.done_writing()
        chunks = await read(call, heard)
        if heard.code is not Code.OK:
            assert heard.code in BUSY, heard
            return heard
        [handle] = [chunk.handle for chunk in chunks if chunk.HasField("handle")]
        await stub.DeleteVoice(pb.DeleteVoiceRequest(id=handle.id), timeout=HANG_SECONDS)
    return heard


async def bombs(soak: Soak) -> Heard:
    """Uploads a small file that claims to be huge."""
    heard, data = Heard(), mp4_bomb(soak.draw.randrange(40_000_000, 80_000_000))
    async with soak.stub() as stub:
        messages = upload(pb.AddReferenceRequest, pb.AddReferenceConfig(), (0, data))
        await read(stub.AddReference(iter(list(messages)), timeout=HANG_SECONDS), heard)
    assert heard.code in BUSY | {Code.INVALID_ARGUMENT}, heard
    return heard


async def talks_nonsense(soak: Soak) -> Heard:
    """Breaks the rules of the contract."""
    heard = Heard()
    broken = soak.draw.choice(
        (
            [pb.GenerateRequest()],
            [pb.GenerateRequest(text="One."), pb.GenerateRequest(config=SPEECHES[0][0])],
            [pb.GenerateRequest(text="...")],
            [pb.GenerateRequest(text="One."), pb.GenerateRequest(finish=pb.Finish()), pb.GenerateRequest(text="More.")],
        )
    )
    async with soak.stub() as stub:
        await read(stub.Generate(iter(broken), timeout=HANG_SECONDS), heard)
    assert heard.code in BUSY | {Code.INVALID_ARGUMENT}, heard
    return heard


ACTORS: dict[Callable[[Soak], Awaitable[Heard]], int] = {
    listens: 6,
    stalls: 4,
    leaves: 3,
    interrupts: 2,
    runs_late: 2,
    uploads: 2,
    bombs: 1,
    talks_nonsense: 1,
}


async def calls(soak: Soak) -> None:
    while time.monotonic() < soak.ends:
        [actor] = soak.draw.choices(list(ACTORS), list(ACTORS.values()))
        soak.note(getattr(actor, "__name__", ""), await actor(soak))


async def disturb(soak: Soak) -> None:
    """Kills an engine, or stops it, time and again. The other one goes on."""
    while time.monotonic() < soak.ends:
        await asyncio.sleep(soak.draw.uniform(2.0, 8.0))
        name = soak.draw.choice(ENGINES)
        pid = soak.processes[name].pid
        assert pid
        os.kill(pid, soak.draw.choice((signal.SIGKILL, signal.SIGSTOP)))
        soak.outcomes["engine", "lost"] += 1
        await until(lambda pid=pid, name=name: soak.processes[name].pid not in (None, pid))
        await until(lambda: all(replica.ready for replica in soak.running.pool.replicas))


# ---- the test


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Soak]:
    recorded, processes = folder / "recorded", {}
    recorded.mkdir()
    engine = EngineSettings(device="cpu", max_slots=SLOTS, max_queue=6)

    def launch(name: str) -> EngineProcess:
        processes[name] = EngineProcess(RecordStats(LoadEngine(TINY, "tiny", engine), recorded), name=name)
        return processes[name]

    limits = LimitSettings(write_seconds=WRITE_SECONDS, max_queue_seconds=20.0)
    store = VoiceSettings(url=str(folder / "voices"))
    settings = Settings(listen="127.0.0.1:0", engine=engine, limits=limits, voices=store, decode_workers=2)
    supervision = patient(silence_seconds=3.0, restart_seconds=0.5)
    pool = EnginePool(LocalEngines({name: partial(launch, name) for name in ENGINES}, supervision))
    async with running_server(settings, directory=TINY, pool=pool) as running:
        yield Soak(running.address, running, processes, recorded, random.Random(SEED))


@pytest.fixture
def quiet_loop(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails the test if the server has logged a traceback, or an error that is none of its engines'."""
    caplog.set_level(logging.INFO)
    yield
    gc.collect()  # tasks whose exceptions nobody has retrieved report them now
    for record in caplog.get_records("call"):
        text = record.getMessage()
        assert record.exc_info is None, text
        engine = record.name.startswith(("voxcpm_grpc.pool", "voxcpm_grpc.ipc")) or text.startswith("health serving=")
        assert record.levelno < logging.ERROR or engine, f"{record.name}: {text}"
        assert "code=INTERNAL" not in text
        assert "code=UNKNOWN" not in text


async def at_base(soak: Soak) -> None:
    """Wait until nothing of any call is left, in the server and in its engines."""
    await until(lambda: not soak.running.rpc.calls)
    await until(lambda: not any(replica.calls for replica in soak.running.pool.replicas))
    for process in soak.processes.values():
        await until(lambda process=process: not recorded_stats(soak.recorded, process.pid).slots_used)
        stats = recorded_stats(soak.recorded, process.pid)
        assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0), stats


async def voices(soak: Soak) -> list[str]:
    async with soak.stub() as stub:
        page = await stub.ListVoices(pb.ListVoicesRequest(), timeout=HANG_SECONDS)
    return [handle.id for handle in page.handles]


async def test_every_caller_gets_what_is_due(tmp_path, quiet_loop):
    print(f"VOXCPM_SOAK_SEED={SEED}")
    process = psutil.Process()
    async with served(tmp_path) as soak:
        for number in range(len(SPEECHES)):
            heard = Heard()
            async with soak.stub() as stub:
                await read(await opened(stub, *said(number)), heard)
            assert heard.code is Code.OK, heard
            soak.expected.append(heard.waveform)
        soak.ends = time.monotonic() + 5.0
        async with asyncio.TaskGroup() as group:  # fills caches and pools
            for _ in range(CALLERS):
                group.create_task(calls(soak))
        await at_base(soak)
        tasks, files, memory, family = (
            len(asyncio.all_tasks()),
            process.num_fds(),
            process.memory_info().rss,
            children(),
        )

        soak.ends = time.monotonic() + SECONDS
        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(calls(soak))
            group.create_task(disturb(soak))
        await at_base(soak)

        for number in range(len(SPEECHES)):
            heard = Heard()
            async with soak.stub() as stub:
                await read(await opened(stub, *said(number)), heard)
            soak.check(heard, soak.expected[number])
            assert heard.code is Code.OK
        assert await voices(soak) == []
        await until(lambda: len(asyncio.all_tasks()) <= tasks)
        await until(lambda: process.num_fds() <= files + FEW_FILES)
        assert len(children()) == len(family)
        gc.collect()
        assert process.memory_info().rss - memory < MOST_GROWTH
    print(dict(sorted(soak.outcomes.items())))
    ok = sum(count for (actor, code), count in soak.outcomes.items() if actor == "listens" and code == "OK")
    assert ok > SECONDS / 10, soak.outcomes
