"""The number of event loop callbacks for each chunk of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import grpc
import pytest
from support.doubles.fake_engine import INFO, MakeFake
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

STREAMS, SHORT, LONG = 16, 10, 60  # number of streams, and their steps
CALLBACKS_OF_A_STEP = 6  # measured: 4.3; fewer on a slow host, which merges chunks


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Counts callbacks of all event loops inside the block; the function returns the count."""
    run: Callable[[asyncio.Handle], None] = asyncio.Handle._run
    counter = count()

    def step(handle: asyncio.Handle) -> None:
        next(counter)
        run(handle)

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", step)
        yield lambda: next(counter)


async def test_a_step_of_a_stream_takes_few_callbacks(serve_front, monkeypatch):
    pool = EnginePool(LocalEngines({"engine": lambda: EngineProcess(MakeFake(step_seconds=0.02))}))
    await pool.start()
    try:
        async with serve_front(pool, trim_leading_silence_seconds=0) as served:  # its first chunk is silent
            with grpc.insecure_channel(served.address) as channel, ThreadPoolExecutor(STREAMS) as threads:
                stub = tts_pb2_grpc.VoxCPMServiceStub(channel)

                def samples_of(steps: int) -> int:
                    """Run a stream of this many steps and count its samples."""
                    sampling = pb.Sampling(min_steps=0, max_steps=steps)
                    config = pb.GenerateConfig(turn=pb.TurnConfig(sampling=sampling))
                    messages = [pb.GenerateRequest(config=config), pb.GenerateRequest(text="Hello.")]
                    return sum(chunk.sample_count for chunk in stub.Generate(iter(messages), timeout=HANG_SECONDS))

                async def callbacks(steps: int) -> int:
                    with counted(monkeypatch) as total:
                        run = asyncio.get_running_loop().run_in_executor
                        samples = await asyncio.gather(*(run(threads, samples_of, steps) for _ in range(STREAMS)))
                        assert samples == [steps * INFO.samples_per_step] * STREAMS
                        return total()

                await callbacks(SHORT)
                short, long = await callbacks(SHORT), await callbacks(LONG)
    finally:
        await pool.close()
    assert 0 < (long - short) / (STREAMS * (LONG - SHORT)) < CALLBACKS_OF_A_STEP
