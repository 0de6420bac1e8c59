"""Streams whose clients do not read leave their slots to others, and go on when they are read again."""

from __future__ import annotations

import asyncio

import grpc
import numpy as np
import pytest
from google.protobuf.duration_pb2 import Duration
from support.grpc_types import EOF
from support.short_speech import ShortSpeech
from support.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

TEXT = "A sentence that takes its time to be spoken, as it is long, and longer than anyone would want to listen."
STEPS = 40  # more audio than credit and the buffers of a connection
MORE = 2  # stalled streams than there are slots
SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65536))


def config(seed: int) -> pb.GenerateConfig:
    sampling = pb.Sampling(seed=seed, inference_timesteps=4, min_steps=STEPS, max_steps=STEPS)
    return pb.GenerateConfig(turn=pb.TurnConfig(sampling=sampling), pacing=pb.Pacing(max_lead=Duration(seconds=1)))


class Listener:
    """A stream, and the audio that its client has read."""

    def __init__(self, stub: tts_pb2_grpc.VoxCPMServiceStub, seed: int) -> None:
        self._call = stub.Generate(self._messages(seed))
        self._parts: list[bytes] = []

    async def _messages(self, seed: int):
        yield pb.GenerateRequest(config=config(seed))
        yield pb.GenerateRequest(text=TEXT)

    async def first_audio(self) -> None:
        while not any(self._parts):
            self._parts.append((await self._call.read()).audio)

    async def rest(self) -> np.ndarray:
        while (chunk := await self._call.read()) is not EOF:
            self._parts.append(chunk.audio)
        return np.frombuffer(b"".join(self._parts), np.int16)


@pytest.mark.timeout(300)
async def test_streams_that_are_not_read_leave_their_slots_to_others(target, info, same_audio):
    stalled = info.max_slots + MORE
    options: ShortSpeech = {"max_steps": 8, "timesteps": 4, "seed": 5}
    async with (
        AsyncClient(target, timeout=HANG_SECONDS, retries=0) as client,
        grpc.aio.insecure_channel(target, SMALL_WINDOW) as channel,
        asyncio.timeout(4 * HANG_SECONDS),
    ):
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        expected = await client.say(TEXT, **options)
        undisturbed = await Listener(stub, 1).rest()
        assert len(undisturbed) == STEPS * info.samples_per_step
        listeners = [Listener(stub, seed) for seed in range(stalled)]
        for listener in listeners:
            await listener.first_audio()
        for speech in await asyncio.gather(*(client.say(TEXT, **options) for _ in range(4))):
            same_audio(speech.samples, expected.samples)
        spoken = await asyncio.gather(*(listener.rest() for listener in listeners))
        same_audio(spoken[1], undisturbed)
        assert {len(samples) for samples in spoken} == {len(undisturbed)}
