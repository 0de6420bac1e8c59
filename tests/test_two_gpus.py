"""Engines on the second GPU of a host, alone and beside one on the first: each in its process, as servers run them.

They need both GPUs for themselves. One test measures the memory that the first GPU has in use, by whatever process, so
what another program or test takes or frees there meanwhile counts as the engine's.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from support.doubles.pools import everything, health_is, patient
from support.engines.checkpoints import TINY
from support.engines.full_size import full_size  # noqa: F401
from support.engines.recorded_stats import RecordStats, recorded_stats
from support.engines.tiny import mixed_requests
from support.servers.running import serving
from support.servers.waiting import until

from voxcpm_client import Client
from voxcpm_grpc.events import AudioChunk
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.request import Conditioning, Request, Role, Sampling
from voxcpm_grpc.settings.engine import EngineSettings
from voxcpm_grpc.worker.main import LoadEngine

GPUS = torch.cuda.device_count()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(GPUS < 2, reason=f"needs two GPUs, and PyTorch sees {GPUS}"),
]
NOTHING = 64 << 20  # bytes of GPU memory; a CUDA context alone takes several times that
STEPS = 12


def used(device: int) -> int:
    """Bytes of a GPU that are taken, by whomever."""
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def samples(events: list) -> np.ndarray:
    return np.concatenate([event.samples for event in events if isinstance(event, AudioChunk)])


@pytest.fixture
def taken_of_the_first() -> Iterator[list[int]]:
    """Bytes that the first GPU has in use before and, appended by the test, later."""
    torch.zeros(1, device="cuda:0")  # our own context, so that measuring adds nothing
    yield [used(0)]


async def test_an_engine_alone_on_the_second_gpu_takes_nothing_of_the_first(full_size, taken_of_the_first):  # noqa: F811
    """The released dimensions in bfloat16, so that every kernel, graph and codec stream has to be there."""
    settings = EngineSettings(device="cuda:1", max_slots=4, timesteps=(4,), prefill_tokens=64)
    pool = EnginePool(LocalEngines.of_checkpoint(full_size, "full", {"cuda:1": settings}))
    try:
        before = used(1)
        await pool.start()
        assert pool.info.device == "cuda:1"
        assert used(1) - before > 2 << 30, "the weights at least"
        latents = await pool.encode(np.zeros(32000, np.float32), Role.REFERENCE)
        voice = Conditioning(reference=latents)
        sampling = Sampling(inference_timesteps=4, min_steps=STEPS, max_steps=STEPS)
        alone = await everything(pool.generate(Request(id="alone", text="Hello.", sampling=sampling)))
        streams = [
            pool.generate(Request(id=f"r{n}", text=f"Number {n}.", sampling=sampling, conditioning=voice))
            for n in range(6)
        ]
        together = await asyncio.gather(*(everything(stream) for stream in streams))
        for events in (alone, *together):
            assert len(samples(events)) == STEPS * pool.info.samples_per_step
            assert np.isfinite(samples(events)).all()
        taken_of_the_first.append(used(0))
    finally:
        await pool.close()
    before, with_engine = taken_of_the_first
    assert with_engine - before < NOTHING


async def test_both_gpus_speak_alike_and_one_that_is_lost_comes_back(tmp_path):
    """In float32, where equal means equal."""
    engines = {f"cuda:{n}": EngineSettings(device=f"cuda:{n}", dtype="float32", max_slots=8) for n in range(2)}
    handles: list[EngineProcess] = []

    def made(settings: EngineSettings) -> EngineProcess:
        handles.append(EngineProcess(RecordStats(LoadEngine(TINY, "tiny", settings, len(engines)), tmp_path)))
        return handles[-1]

    pool = EnginePool(
        LocalEngines({name: partial(made, one) for name, one in engines.items()}, patient(restart_seconds=0.5))
    )
    try:
        await pool.start()
        for request in mixed_requests():
            twice = [pool.generate(replace(request, id=f"{request.id}-{n}")) for n in range(2)]
            one, other = await asyncio.gather(*(everything(stream) for stream in twice))
            np.testing.assert_allclose(samples(one), samples(other), atol=1e-3, rtol=0)
        steps = [recorded_stats(tmp_path, handle.pid).steps for handle in handles]
        assert min(steps) > 0.3 * sum(steps), "each pair was spoken by both"
        for handle in handles:
            assert handle.pid
            os.kill(handle.pid, signal.SIGKILL)
        await health_is(pool, False)
        await until(lambda: all(replica.ready for replica in pool.replicas), 200)
        again = await everything(pool.generate(mixed_requests()[0]))
        assert len(samples(again))
    finally:
        await pool.close()


def test_fronts_share_the_engines_of_two_gpus(tmp_path: Path):
    with serving(tmp_path, "--devices", "1,0", "--fronts", "2", "--engine.max-slots", "8") as server:

        def speak(number: int) -> int:
            with Client(server.address, timeout=300) as client:
                return len(client.say(f"Number {number}.", seed=number, max_steps=STEPS).samples)

        with ThreadPoolExecutor(16) as threads:
            assert min(threads.map(speak, range(32))) > 0


def test_a_server_uses_every_gpu_and_chooses_its_fronts(tmp_path: Path):
    with serving(tmp_path, "--engine.max-slots", "8") as server:
        assert f"devices: one engine on each of {GPUS} GPUs; --devices 0 takes one GPU" in server.log
        assert re.search(r"fronts: \d+, (\d for each|half of|as many as)", server.log)
        with Client(server.address, timeout=300) as client:
            assert len(client.say("Hello.", seed=1, max_steps=STEPS).samples)
        for number in range(GPUS):
            assert f"engine cuda:{number}: the engine is warming up" in server.log
