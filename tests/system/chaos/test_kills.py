"""Engines die 80 times at random steps, and every stream is the one that an engine makes without deaths.

VOXCPM_KILLS sets another number, VOXCPM_KILLS_SEED repeats a run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from support.engines import qwen3
from support.engines.killable_engines import KillableEngines
from support.engines.tiny import CPU, engine, finished, mixed_requests, run
from support.engines.toy_engines import asks, toy_engine
from support.engines.toy_family import expected
from support.engines.voice_parts import latents_of
from support.servers.waiting import HANG_SECONDS

from voxcpm_grpc.engine.engine import Engine
from voxcpm_grpc.events import AudioChunk, Finished
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import Priority, Request
from voxcpm_grpc.settings.engine import EngineSettings

KILLS = int(os.environ.get("VOXCPM_KILLS") or 80)
SEED = int(os.environ.get("VOXCPM_KILLS_SEED", str(random.randrange(1 << 32))))
TOLERANCE = 1e-4
ENGINES = "abcd"
CALLERS = 8
ROUNDS = 12  # of an engine between its start and its death, at most
WINDOWS = (3, 8, 128)


class Killer:
    """Ends an engine after a random number of its rounds, once all that were tried before have gone on.

    So none of them is on two engines in a row that end.
    """

    def __init__(self, pool: EnginePool, engines: KillableEngines, kills: int, draw: random.Random) -> None:
        self._pool, self._engines, self._kills, self._draw = pool, engines, kills, draw
        self._left = {name: draw.randrange(ROUNDS) for name in ENGINES}

    def __call__(self, name: str) -> None:
        self._left[name] -= 1
        calls = [call for replica in self._pool.replicas if replica.name == name for call in replica.calls]
        if (
            self._left[name] >= 0
            or not calls
            or self._engines.kills >= self._kills
            or any(call.deaths for call in calls)
        ):
            return
        self._left[name] = self._draw.randrange(ROUNDS)
        self._engines.kill(name)


async def speak(pool: EnginePool, request: Request, draw: random.Random) -> tuple[np.ndarray, Finished]:
    """Speak a request with any window and priority, reading at any pace."""
    priority = draw.choice((Priority.INTERACTIVE, Priority.INTERACTIVE, Priority.BATCH))
    audio, chunks = list[np.ndarray](), 0
    async with asyncio.timeout(HANG_SECONDS):
        call = pool.generate(replace(request, priority=priority), window=draw.choice(WINDOWS))
        async with contextlib.aclosing(call):
            async for event in call:
                if isinstance(event, AudioChunk):
                    assert event.index == chunks
                    audio.append(np.array(event.samples))
                    chunks = event.end
                elif isinstance(event, Finished):
                    assert event.steps == chunks
                    return np.concatenate(audio) if audio else np.zeros(0, np.float32), event
                for _ in range(draw.choice((0, 0, 0, 5))):
                    await asyncio.sleep(0)
    raise AssertionError("it did not end")


async def survive(engines: KillableEngines, requests: list[Request], check, kills: int = KILLS) -> None:
    """Let callers speak until enough engines have died, and check all that they hear."""
    pool, numbers = EnginePool(engines), count()
    await pool.start()
    engines.after_round = Killer(pool, engines, kills, random.Random(SEED))

    async def call(number: int) -> None:
        draw = random.Random(SEED + number)
        while engines.kills < kills:
            request = draw.choice(requests)
            check(request, *await speak(pool, replace(request, id=f"{request.id}-{next(numbers)}"), draw))

    try:
        async with asyncio.TaskGroup() as callers:
            for number in range(CALLERS):
                callers.create_task(call(number))
        assert engines.kills >= kills and pool.continuations > kills
        assert not any(replica.calls for replica in pool.replicas)
    finally:
        await pool.close()


async def test_streams_of_the_tiny_model_survive_all_deaths():
    print(f"VOXCPM_KILLS_SEED={SEED}")
    requests, eng = mixed_requests(), engine()
    requests = [replace(one, sampling=replace(one.sampling, inference_timesteps=4)) for one in requests]
    for request in requests:
        eng.add(request)
    undisturbed = run(eng)

    def check(request: Request, audio: np.ndarray, end: Finished) -> None:
        wanted = undisturbed[request.id]
        np.testing.assert_allclose(audio, wanted.waveform, atol=TOLERANCE, rtol=0)
        known = finished(wanted)
        assert (end.steps, end.reason, end.ran_on) == (known.steps, known.reason, known.ran_on)
        np.testing.assert_allclose(latents_of(end.speech), latents_of(known.speech), atol=TOLERANCE, rtol=0)

    shared = eng.model  # it has no state of streams
    settings = EngineSettings(prefill_tokens=48)
    await survive(KillableEngines(ENGINES, lambda: Engine(shared, settings, CPU)), requests, check)


async def test_streams_of_another_family_survive_all_deaths():
    print(f"VOXCPM_KILLS_SEED={SEED}")
    requests, completed = asks(12, least=10), toy_engine().info.completed

    def check(request: Request, audio: np.ndarray, end: Finished) -> None:
        wanted = expected(request, completed)
        assert np.array_equal(audio, wanted.audio)
        assert end.speech is not None and end.steps == len(wanted.codes)
        assert np.array_equal(end.speech.content["codes"], wanted.codes)

    await survive(KillableEngines(ENGINES, lambda: toy_engine(slots=4)), requests, check)


@pytest.mark.parametrize("variant", ["custom17", "base17", "design"])
async def test_streams_of_qwen3_tts_survive_all_deaths(variant):
    """Its codes are drawn by the seed, the last ones weigh on the next, and its codec has a memory of 72 frames."""
    print(f"VOXCPM_KILLS_SEED={SEED}")
    requests = [replace(one, arrives=False) for one in qwen3.asks(variant, steps=25)]
    eng = qwen3.engine(variant)
    for request in requests:
        eng.add(request)
    undisturbed = run(eng)

    def check(request: Request, audio: np.ndarray, end: Finished) -> None:
        wanted = undisturbed[request.id]
        assert end.speech is not None and end.steps == 25
        assert np.array_equal(end.speech.content["codes"], qwen3.codes_of(wanted))
        np.testing.assert_allclose(audio, wanted.waveform, atol=TOLERANCE, rtol=0)

    await survive(KillableEngines(ENGINES, lambda: qwen3.engine(variant)), requests, check, kills=KILLS // 5)
