"""Streams whose clients do not read leave their slots to others, and go on when they are read again."""

from __future__ import annotations

import asyncio

import grpc
from support.clients.short_speech import ShortSpeech
from support.clients.unread_streams import SMALL_WINDOW, STEPS, TEXT, Listener
from support.servers.waiting import HANG_SECONDS

from voxcpm_client import AsyncClient
from voxcpm_grpc.v1 import tts_pb2_grpc

MORE = 2  # stalled streams than there are slots


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
