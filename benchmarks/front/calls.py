"""Calls through a front, and the delay of each message from the engine to the client."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from benchmarks.front import paced_engine
from benchmarks.measuring.texts import text
from benchmarks.serving.clients import CALL_SECONDS
from benchmarks.serving.requests import PlannedRequest, RequestShape, UserRequests
from voxcpm_client import AsyncClient
from voxcpm_client.values.options import SpeechOptions


@dataclass(slots=True, kw_only=True)
class TimedCall:
    """A call, with its chunks, and the delay of each message: seconds from the engine's step to the client.

    A message may hold several chunks, of which the newest counts.
    """

    seed: int
    counts: bool
    sent: float
    chunks: int = 0
    delays: list[float] = field(default_factory=list)


async def run_user(client: AsyncClient, requests: UserRequests, shape: RequestShape, start: float) -> list[TimedCall]:
    """Send the requests of one user, each as soon as the one before it has ended."""
    await asyncio.sleep(start - time.perf_counter())
    return [await _call(client, request, shape) for request in requests]


async def _call(client: AsyncClient, request: PlannedRequest, shape: RequestShape) -> TimedCall:
    call = TimedCall(seed=request.serial, counts=request.counts, sent=time.perf_counter())
    options: SpeechOptions = {
        "min_steps": request.steps,
        "max_steps": request.steps,
        "seed": request.serial,
        "timeout": CALL_SECONDS,
    }
    async with client.speak(text(request.serial, shape.chars), **options) as stream:
        async for chunk in stream:
            if chunk.sample_count:
                call.chunks += chunk.sample_count // paced_engine.INFO.samples_per_step
                call.delays.append(paced_engine.age(chunk.audio))
    return call
