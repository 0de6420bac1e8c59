from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import numpy as np
import psutil
import pytest
from support.servers.waiting import HANG_SECONDS, NEVER_SECONDS, until

from voxcpm_grpc.audio import AudioFormat, BadAudio, Encoding, wav_bytes
from voxcpm_grpc.audio.uploads import DecodePool, decode
from voxcpm_grpc.errors import Unavailable

LIMITS = {"target_rate": 16000, "max_seconds": 30.0, "max_bytes": 1 << 24}
TONE = np.random.default_rng(3).uniform(-0.5, 0.5, 48000).astype(np.float32)
RECORDING = wav_bytes(TONE, 48000)


@asynccontextmanager
async def pool_of(workers: int, **options: Any):
    pool = DecodePool(workers, **{"timeout": NEVER_SECONDS, **options})
    try:
        yield pool
    finally:
        await pool.close()


def same(one, other) -> bool:
    return (one.source_rate, one.seconds) == (other.source_rate, other.seconds) and np.array_equal(
        one.waveform, other.waveform
    )


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_results_and_errors_equal_those_of_decode():
    async with pool_of(2) as pool:
        assert pool.pids == []  # workers start with the first job
        hint = AudioFormat(Encoding.PCM_S16LE, 44100)
        jobs = [pool.decode(RECORDING, **LIMITS), pool.decode(RECORDING[44:], format_hint=hint, **LIMITS)]
        plain, raw = await asyncio.gather(*jobs)
        assert same(plain, decode(RECORDING, **LIMITS))
        assert same(raw, decode(RECORDING[44:], format_hint=hint, **LIMITS))
        for data in (b"", b"no audio at all", wav_bytes(np.zeros(0, np.float32), 8000)):
            with pytest.raises(BadAudio) as here:
                decode(data, **LIMITS)
            with pytest.raises(BadAudio) as there:
                await pool.decode(data, **LIMITS)
            assert (there.value.message, there.value.field) == (here.value.message, here.value.field)


def test_errors_can_be_pickled():
    with pytest.raises(BadAudio) as caught:
        decode(b"", **LIMITS)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.message, copy.field) == (BadAudio, caught.value.message, "audio")


async def test_the_job_of_a_killed_worker_runs_again():
    async with pool_of(2) as pool:
        await pool.start()
        victim, neighbour = pool.pids
        os.kill(victim, signal.SIGSTOP)  # its job cannot end
        jobs = [asyncio.create_task(pool.decode(RECORDING, **LIMITS)) for _ in range(4)]
        for finished in islice(asyncio.as_completed(jobs, timeout=HANG_SECONDS), 3):
            await finished
        os.kill(victim, signal.SIGKILL)
        expected = decode(RECORDING, **LIMITS)
        assert all(same(result, expected) for result in await asyncio.gather(*jobs))
        assert victim not in pool.pids and neighbour in pool.pids


async def test_a_job_whose_workers_are_all_killed_is_not_the_fault_of_its_recording():
    async with pool_of(1, timeout=0.001) as pool:
        with pytest.raises(Unavailable, match=r"stopped twice.* 0\.001 s; retry") as caught:
            await pool.decode(wav_bytes(np.tile(TONE, 25), 48000), **LIMITS)
        assert caught.value.retry_after


async def test_an_idle_worker_that_is_killed_is_replaced():
    async with pool_of(1) as pool:
        await pool.start()
        (pid,) = pool.pids
        os.kill(pid, signal.SIGKILL)
        await until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)  # the parent has not read its status
        assert same(await pool.decode(RECORDING, **LIMITS), decode(RECORDING, **LIMITS))
        assert pool.pids != [pid]


async def test_a_job_moves_to_a_new_worker_after_the_timeout():
    async with pool_of(1, timeout=5.0) as pool:
        await pool.start()
        [stopped] = pool.pids
        os.kill(stopped, signal.SIGSTOP)
        recording = wav_bytes(np.tile(TONE, 20), 48000)  # more than a pipe buffers, so that sending blocks too
        assert same(await pool.decode(recording, **LIMITS), decode(recording, **LIMITS))
        assert pool.pids != [stopped]


async def test_the_event_loop_runs_during_a_job():
    """The event loop neither sends nor waits: a blocked worker blocks only its own job."""
    async with pool_of(1) as pool:
        recording = wav_bytes(np.tile(TONE, 20), 48000)  # more than a pipe buffers
        await pool.start()
        [pid] = pool.pids
        os.kill(pid, signal.SIGSTOP)
        job = asyncio.create_task(pool.decode(recording, **LIMITS))
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert not job.done()
        os.kill(pid, signal.SIGCONT)
        spent = time.thread_time()
        assert len((await job).waveform) == 20 * 16000
        spent = time.thread_time() - spent
        began = time.thread_time()
        decode(recording, **LIMITS)
        assert spent < 0.5 * (time.thread_time() - began)


async def test_the_pool_is_usable_after_cancelled_calls():
    async with pool_of(1) as pool:
        await pool.start()
        jobs = [asyncio.create_task(pool.decode(RECORDING, **LIMITS)) for _ in range(5)]
        await asyncio.sleep(0)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        assert all(job.cancelled() for job in jobs)
        assert same(await pool.decode(RECORDING, **LIMITS), decode(RECORDING, **LIMITS))


async def test_close_ends_workers_and_jobs():
    pool = DecodePool(1)
    await pool.start()
    pids = pool.pids
    os.kill(pids[0], signal.SIGSTOP)
    jobs = [asyncio.create_task(pool.decode(RECORDING, **LIMITS)) for _ in range(2)]
    await asyncio.sleep(0.1)
    await pool.close()
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable, Unavailable]
    assert not any(alive(pid) for pid in pids)
    with pytest.raises(Unavailable):
        await pool.decode(RECORDING, **LIMITS)
    await pool.close()  # a second call has no effect


async def test_callers_take_turns():
    """Eight recordings of one caller delay the only one of another caller by one recording."""
    order = []
    async with pool_of(1) as pool:
        await pool.start()
        [pid] = pool.pids
        os.kill(pid, signal.SIGSTOP)  # until all of them wait

        async def upload(caller: str) -> None:
            await pool.decode(RECORDING, **LIMITS, caller=caller)
            order.append(caller)

        jobs = [asyncio.create_task(upload("many")) for _ in range(8)]
        await asyncio.sleep(0)
        jobs.append(asyncio.create_task(upload("one")))
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGCONT)
        await asyncio.gather(*jobs)
    assert order.index("one") == 1, order


ENDS_AT_THE_START = """
import os, threading, time
from voxcpm_grpc.audio.uploads.process import DecodeWorker
from voxcpm_grpc.logs import LogOptions

worker = DecodeWorker(60.0, 60.0, LogOptions())
threading.Thread(target=worker.start, daemon=True).start()
while worker.helper.pid is None:
    time.sleep(0.001)
os._exit(0)
"""


def test_a_worker_whose_parent_ends_before_it_is_ready_ends_in_silence():
    command = [sys.executable, "-c", ENDS_AT_THE_START]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)  # ends with the worker
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
