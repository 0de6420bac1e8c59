"""Generate sessions on a fake clock, with messages in memory: no host is too slow for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import numpy as np
from support.doubles.made_up_time import run
from support.engines.voice_parts import voice_part

from voxcpm_grpc.audio import AudioFormat, Encoding
from voxcpm_grpc.request import Conditioning, Sampling, VoicePart
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server.speech.character_quota import CharacterQuota
from voxcpm_server.speech.session import Session
from voxcpm_server.values.inputs import (
    Continuity,
    GenerateConfig,
    GenerateInput,
    Segmentation,
    SegmentationMode,
    TurnConfig,
    VoiceChoice,
)

IDLE_SECONDS = 10.0
LIMITS = LimitSettings(stream_idle_seconds=IDLE_SECONDS)
Script = Iterable[GenerateInput | float | Callable[[], object]]
"""Messages, pauses in seconds, and functions to call. A generator sees what was received before each of its items."""
PCM = AudioFormat(Encoding.PCM_S16LE, 48000)


class SlowClient:
    """Reads `count` messages and then none until `resume`."""

    def __init__(self, count: int) -> None:
        self.received: list[pb.AudioChunk] = []
        self._count = count
        self._resumed = asyncio.Event()

    async def send(self, message: pb.AudioChunk) -> None:
        self.received.append(message)
        if len(self.received) > self._count:
            await self._resumed.wait()

    def resume(self) -> None:
        self._resumed.set()


def generate_config(
    sampling: Sampling | None = None,
    *,
    mode: SegmentationMode = SegmentationMode.SENTENCE,
    continuity: Continuity = Continuity.CARRY,
    max_wait: float = 0.0,
    max_lead: float = 1000.0,
    max_queue: float = 1000.0,
    output: AudioFormat = PCM,
    attempts: int = 1,
) -> GenerateConfig:
    return GenerateConfig(
        voice=VoiceChoice(),
        turn=TurnConfig(sampling=sampling or Sampling(), max_attempts=attempts),
        output=output,
        segmentation=Segmentation(mode=mode, max_wait=max_wait),
        continuity=continuity,
        max_lead=max_lead,
        max_queue=max_queue,
    )


def session(
    pool: Any,
    script: Script,
    *,
    client: SlowClient | None = None,
    mode: SegmentationMode = SegmentationMode.SENTENCE,
    continuity: Continuity = Continuity.CARRY,
    max_lead: float = 1000.0,
    max_queue: float = 1000.0,
    voice: Conditioning | None = None,
    sampling: Sampling | None = None,
    ends: bool = True,
    quota: CharacterQuota | None = None,
    output: AudioFormat = PCM,
    attempts: int = 1,
) -> list[pb.AudioChunk]:
    """Run a session and return its messages. At the end of the script the stream ends, or stays open and silent.

    A pause longer than any wait of the session lasts until all of its tasks wait for the client.
    """
    config = generate_config(
        sampling,
        mode=mode,
        continuity=continuity,
        max_lead=max_lead,
        max_queue=max_queue,
        output=output,
        attempts=attempts,
    )
    return run(_run(pool, script, client or SlowClient(10**9), config, voice or Conditioning(), ends, quota))


async def _run(
    pool: Any,
    script: Script,
    client: SlowClient,
    config: GenerateConfig,
    voice: Conditioning,
    ends: bool,
    quota: CharacterQuota | None,
) -> list[pb.AudioChunk]:
    async def encode(samples: np.ndarray) -> VoicePart:
        return voice_part(np.zeros((1, 4, 8), np.float32))

    one = Session(
        config,
        voice,
        "",
        pool=pool,
        encode=encode,
        limits=LIMITS,
        request_id="",
        remaining=lambda: None,
        send=client.send,
        quota=quota,
    )
    asyncio.get_running_loop().call_later(100 * IDLE_SECONDS, lambda: None)  # keeps the clock running
    async with asyncio.timeout(90 * IDLE_SECONDS):
        await one.run(None, _messages(script, ends))
    return client.received


async def _messages(script: Script, ends: bool) -> AsyncIterator[GenerateInput]:
    for item in script:
        if isinstance(item, float | int):
            await asyncio.sleep(item)
        elif callable(item):
            item()
        else:
            yield item
    if not ends:
        await asyncio.Event().wait()
