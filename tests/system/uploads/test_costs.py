"""Recordings that cost far more than they should, sent to a real server beside those of an honest caller."""

from __future__ import annotations

import asyncio
import io
import os
import random
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from support.clients.callers import calling_from
from support.clients.media import encode_file, sine
from support.hostile.lying_files import holed, longer_flac, mp4_bomb
from support.servers.running import Server, serving
from support.servers.uploads import recording, upload
from support.servers.waiting import until

from voxcpm_client import Client
from voxcpm_grpc.audio import Encoding, WavWriter
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

OTHER = "127.0.0.2"
INVALID = grpc.StatusCode.INVALID_ARGUMENT
WORKER_BYTES = 400 << 20  # before the limits of workers, a bomb took 1.5 to 2.9 GB
SIZE = 1 << 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("voices"), "--limits.max-prompt-seconds", "60") as running:
        yield running
        with Client(running.address) as client:
            assert client.say("Still here.", max_steps=4, timesteps=4).samples.any()
        for fault in ("Traceback", " ERROR ", "code=INTERNAL", "code=UNKNOWN"):
            before, found, after = running.log.partition(fault)
            assert not found, f"{before[-1000:]}{found}{after[:3000]}"


def workers(server: Server) -> list[psutil.Process]:
    """The processes that decode: children of the server that are no engine."""
    children = psutil.Process(server.process.pid).children()
    found = [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    assert found
    return found


def peak_bytes(process: psutil.Process) -> int:
    """The largest resident memory of a process so far."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
    assert found
    return int(found[1]) << 10


async def status(stub: Any, data: bytes, transcript: str = "Hi there.") -> grpc.StatusCode:
    config = pb.AddPromptConfig(transcript=transcript)
    call = stub.AddPrompt(iter(list(upload(pb.AddPromptRequest, config, (0, data), size=SIZE))))
    try:
        async for _ in call:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def test_bombs_take_little_memory_and_do_not_delay_another_caller(server):
    bombs = [mp4_bomb(40_000_000 + 5_000_000 * n, codec=codec) for n in range(4) for codec in (b"sowt", b"mp4a")]
    order: list[str] = []

    async def send(stub: Any, name: str, data: bytes, expected: grpc.StatusCode) -> None:
        assert await status(stub, data) is expected
        order.append(name)

    async with (
        calling_from(OTHER, server.address) as elsewhere,
        grpc.aio.insecure_channel(elsewhere) as far,
        grpc.aio.insecure_channel(server.address) as near,
    ):
        attacker, honest = tts_pb2_grpc.VoxCPMServiceStub(far), tts_pb2_grpc.VoxCPMServiceStub(near)
        [worker] = workers(server)
        jobs = [asyncio.create_task(send(attacker, "bomb", bomb, INVALID)) for bomb in bombs]
        jobs.append(asyncio.create_task(send(honest, "honest", recording(1), grpc.StatusCode.OK)))
        await asyncio.gather(*jobs)
    assert [process.pid for process in workers(server)] == [worker.pid]  # no bomb cost a worker
    assert peak_bytes(worker) < WORKER_BYTES


async def test_many_recordings_of_one_caller_delay_another_caller_by_one(server):
    """The server has all of them before the honest one arrives."""
    samples = np.full(192000 * 40, np.nan, "<f4")  # refused after it was decoded, so that no engine changes the order
    writer = io.BytesIO()
    with WavWriter(writer, 192000, Encoding.PCM_F32LE) as wav:
        wav.write(samples.tobytes())
    long = writer.getvalue()
    order: list[str] = []

    async def send(stub: Any, name: str, data: bytes, expected: grpc.StatusCode) -> None:
        assert await status(stub, data) is expected
        order.append(name)

    async with (
        calling_from(OTHER, server.address) as elsewhere,
        grpc.aio.insecure_channel(elsewhere) as far,
        grpc.aio.insecure_channel(server.address) as near,
    ):
        many, honest = tts_pb2_grpc.VoxCPMServiceStub(far), tts_pb2_grpc.VoxCPMServiceStub(near)
        [worker] = workers(server)
        worker.suspend()  # until all recordings wait
        jobs = [asyncio.create_task(send(many, "many", long, INVALID)) for _ in range(6)]
        await until(lambda: worker.status() == psutil.STATUS_STOPPED)
        await asyncio.sleep(8)  # less than the timeout of a job, which would start another worker
        jobs.append(asyncio.create_task(send(honest, "honest", recording(2), grpc.StatusCode.OK)))
        await asyncio.sleep(1)
        worker.resume()
        await asyncio.gather(*jobs)
    assert order[-1] != "honest", order  # it is encoded after its turn, so some of the others end first


async def test_a_worker_that_is_killed_is_not_the_fault_of_the_recording(server):
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        [worker] = workers(server)
        worker.suspend()
        job = asyncio.create_task(status(stub, recording(3)))
        await asyncio.sleep(1)
        assert not job.done()
        os.kill(worker.pid, signal.SIGKILL)
        assert await job is grpc.StatusCode.OK


async def test_damaged_recordings_are_stored_or_refused(server):
    """130 files of all formats, with holes, with cut ends and with lying headers."""
    rng = random.Random(7)
    tone = sine(3.0, 48000)[None]
    files = [
        encode_file(container, codec, 48000, tone)
        for container, codec in (
            ("flac", "flac"),
            ("ogg", "libopus"),
            ("webm", "libopus"),
            ("ipod", "aac"),
            ("mp3", "libmp3lame"),
            ("wav", "pcm_s16le"),
        )
    ]
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        found = set()
        for number in range(130):
            data = rng.choice(files)
            match number % 4:
                case 0:
                    start = rng.random()
                    data = holed(data, start, rng.uniform(start, 1))
                case 1:
                    data = data[: rng.randrange(1, len(data))]
                case 2:
                    changed = bytearray(data)
                    for _ in range(20):
                        changed[rng.randrange(min(len(changed), 2000))] = rng.randrange(256)
                    data = bytes(changed)
                case _:
                    codec = rng.choice([b"sowt", b"mp4a", b"alac"])
                    bomb = mp4_bomb(rng.randrange(1 << 31), ticks=rng.randrange(2, 5000), codec=codec)
                    data = rng.choice([bomb, longer_flac(files[0], rng.randrange(1 << 36))])
            found.add(await status(stub, data, f"Number {number}."))
        assert found == {grpc.StatusCode.OK, INVALID}
        assert await status(stub, recording(4)) is grpc.StatusCode.OK
    assert all(peak_bytes(worker) < WORKER_BYTES for worker in workers(server))
