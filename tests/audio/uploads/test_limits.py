"""Recordings that cost more than they should are refused, and the worker that refuses them serves the next one."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from support.hostile.lying_files import holed, longer_flac, mp4_bomb
from support.servers.waiting import NEVER_SECONDS

from voxcpm_grpc.audio import BadAudio, wav_bytes
from voxcpm_grpc.audio.uploads import DecodePool, decode

LIMITS = {"target_rate": 16000, "max_seconds": 60.0, "max_bytes": 1 << 25}
RECORDING = wav_bytes(np.random.default_rng(3).uniform(-0.5, 0.5, 48000).astype(np.float32), 48000)
needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process")


@pytest.fixture
async def pool():
    made = DecodePool(1, timeout=NEVER_SECONDS)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


def peak_bytes(pid: int) -> int:
    """The largest resident memory of a process so far."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1]) << 10


def highest_descriptor(pid: int) -> int:
    """Of a process, which may have inherited some of this one."""
    return max(int(file.name) for file in Path(f"/proc/{pid}/fd").iterdir())


def limits_of(pid: int) -> str:
    return Path(f"/proc/{pid}/limits").read_text()


async def serves(pool: DecodePool) -> None:
    assert np.array_equal((await pool.decode(RECORDING, **LIMITS)).waveform, decode(RECORDING, **LIMITS).waveform)


@needs_proc
@pytest.mark.parametrize("codec", [b"sowt", b"mp4a", b"alac"])
async def test_an_index_of_millions_of_samples_takes_little_memory(pool, codec):
    await serves(pool)
    [pid] = pool.pids
    before = peak_bytes(pid)
    with pytest.raises(BadAudio, match=r"none of the 40000000 frames .* more memory .* send it as WAV or FLAC"):
        await pool.decode(mp4_bomb(40_000_000, codec=codec), **LIMITS)
    assert peak_bytes(pid) - before < 300 << 20  # without a limit: 1.4 GB
    assert pool.pids == [pid]
    await serves(pool)


@needs_proc
async def test_a_recording_that_needs_too_much_memory_is_refused(pool, monkeypatch):
    monkeypatch.setattr("voxcpm_grpc.audio.uploads.process.memory_for", lambda *_: 0)
    long = wav_bytes(np.tile(np.linspace(-0.5, 0.5, 48000, dtype=np.float32), 600), 48000)
    with pytest.raises(BadAudio, match=r"needs more than 0 MiB of memory to decode; send it as WAV or FLAC"):
        await pool.decode(long, **{**LIMITS, "max_bytes": 1 << 28, "max_seconds": 600.0})
    monkeypatch.undo()
    await serves(pool)


@needs_proc
async def test_a_worker_opens_no_more_files_and_leaves_no_core_dump(pool):
    await serves(pool)
    [pid] = pool.pids
    limits = limits_of(pid)
    files = re.search(r"Max open files +(\d+) +(\d+)", limits)
    assert files
    assert int(files[1]) == int(files[2]) < highest_descriptor(pid) + 64
    assert re.search(r"Max core file size +0 +0", limits)


@needs_proc
async def test_the_longest_recordings_stay_below_the_limit_of_memory(pool):
    noise = np.random.default_rng(1).integers(0, 256, 32 << 20, np.uint8).tobytes()
    header = wav_bytes(np.zeros(0, np.float32), 16000)
    for width, channels in ((1, 32), (1, 4), (2, 2), (3, 1)):
        frame = width * channels
        body = noise[: min(len(noise), 192000 * 60 * frame)]
        frames = (1, channels, 192000, 192000 * frame, frame, 8 * width)
        fmt = b"".join(n.to_bytes(size, "little") for n, size in zip(frames, (2, 2, 4, 4, 2, 2), strict=True))
        data = header[:20] + fmt + b"data" + len(body).to_bytes(4, "little") + body
        decoded = await pool.decode(data, **{**LIMITS, "max_bytes": len(data)})
        assert decoded.seconds == pytest.approx(len(body) / frame / 192000, abs=0.01)


async def test_a_recording_that_takes_too_much_computing_time_is_refused():
    pool = DecodePool(1, timeout=NEVER_SECONDS, cpu_seconds=0.1)
    try:
        await pool.start()
        with pytest.raises(BadAudio, match=r"more than 0\.1 s of computing time to decode; send it as WAV or FLAC"):
            await pool.decode(mp4_bomb(80_000_000), **{**LIMITS, "max_seconds": 1e6})
        await serves(pool)
    finally:
        await pool.close()


async def test_the_limit_of_computing_time_is_that_of_one_recording():
    """Many recordings on one worker take longer than the limit of each."""
    pool = DecodePool(1, timeout=NEVER_SECONDS, cpu_seconds=1.0)
    try:
        await pool.start()
        pids = pool.pids
        long = wav_bytes(np.tile(np.linspace(-0.5, 0.5, 48000, dtype=np.float32), 50), 48000)
        for _ in range(60):
            await pool.decode(long, **LIMITS)
        assert pool.pids == pids
    finally:
        await pool.close()


async def test_a_decoder_that_crashes_is_the_fault_of_the_recording(pool):
    [pid] = pool.pids
    os.kill(pid, signal.SIGSTOP)
    job = asyncio.create_task(pool.decode(RECORDING, **LIMITS))
    await asyncio.sleep(0.1)
    os.kill(pid, signal.SIGSEGV)
    os.kill(pid, signal.SIGCONT)
    with pytest.raises(BadAudio, match="could not be decoded: it crashes its decoder"):
        await job
    await serves(pool)


async def test_headers_that_promise_too_much_are_refused_with_the_figures(pool, make_file, make_sine):
    three = make_sine(3.0, 48000)[None]
    for lie in (longer_flac(make_file("flac", "flac", 48000, three), 48000 * 3600), mp4_bomb(1000, ticks=16000 * 60)):
        with pytest.raises(BadAudio, match=r"\d\.\d\d s of the \d+\.\d\d s that the file declares"):
            await pool.decode(lie, **LIMITS)


async def test_a_damaged_file_says_how_much_of_it_was_decoded(pool, make_file, make_sine):
    whole = make_file("ipod", "aac", 44100, make_sine(3.0, 44100)[None])
    with pytest.raises(BadAudio, match=r"0\.\d\d s of the 3\.0\d s that the file declares could be decoded.* 25% "):
        await pool.decode(holed(whole, 0.02, 0.9), **LIMITS)


async def test_minutes_of_silence_are_refused_at_the_limit_of_seconds(pool, make_file):
    for container, codec in (("flac", "flac"), ("ogg", "libopus")):
        bomb = make_file(container, codec, 48000, np.zeros((1, 48000 * 150), np.float32))
        with pytest.raises(BadAudio, match=r"6\d\.\d s or more and the limit is 60 s"):
            await pool.decode(bomb, **LIMITS)
