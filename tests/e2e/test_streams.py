"""Concurrent streams that are cancelled, expire or are read slowly end correctly and free their resources."""

from __future__ import annotations

import asyncio

import grpc
import numpy as np
import pytest
from support.clients.grpc_types import EOF

from voxcpm_client import AsyncClient, Client, SpeechOptions
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.v1 import tts_pb2_grpc

LONG = "A sentence that takes its time to be spoken, as it is long, and longer than anyone would want to listen. "


async def test_concurrent_streams_of_all_kinds_equal_single_ones(target, client, recording, same_audio):
    voice = client.add_hifi(recording, "A tone.")
    kinds = [
        {},
        {"style": "calm"},
        {"voice": voice.id},
        {"voice": voice.prompt_id},
        {"voice": voice.reference_id},
        {"reference": recording},
        {"continuity": "independent"},
        {"timesteps": 10, "cfg_value": 1.0},
    ]

    async def speak(caller: AsyncClient, index: int) -> np.ndarray:
        options = {"seed": index, "max_steps": 5, "timesteps": 4, **kinds[index]}
        return (await caller.say("One is here. Two is here.", **options)).samples

    async with AsyncClient(target, timeout=90) as caller:
        alone = [await speak(caller, index) for index in range(len(kinds))]
        together = await asyncio.gather(*(speak(caller, index) for index in range(len(kinds))))
    for first, second in zip(together, alone, strict=True):
        same_audio(first, second)
    client.delete_voice(voice.id, cascade=True)


async def test_cancelled_streams_free_their_slots(target, info):
    """Cancel more streams than there are slots during their speech, then run another one."""
    async with grpc.aio.insecure_channel(target) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)

        async def begin_and_cancel() -> None:
            call = stub.Generate(timeout=300)
            await call.write(pb.GenerateRequest(text=LONG * 3))
            await call.write(pb.GenerateRequest(flush=pb.Flush()))
            while not (chunk := await call.read()).sample_count:
                assert chunk is not EOF
            call.cancel()

        for _ in range(3):
            await asyncio.gather(*(begin_and_cancel() for _ in range(min(info.max_slots, 8))))
    with Client(target, timeout=300) as client:
        summary = client.say("Hello.", max_steps=3, timesteps=4, max_queue_time=60).summary
        assert summary is not None and summary.total_samples


async def samples_before_the_deadline(stub, seconds: float) -> int:
    """The number of samples received before the deadline of an unfinished stream."""

    async def messages():
        yield pb.GenerateRequest(text="Hello there. ")
        yield pb.GenerateRequest(flush=pb.Flush())
        await asyncio.sleep(2 * seconds)

    received = 0
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        async for chunk in stub.Generate(messages(), timeout=seconds):
            received += chunk.sample_count
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return received


async def test_a_deadline_ends_only_its_stream(target):
    async with grpc.aio.insecure_channel(target) as channel:
        stub = tts_pb2_grpc.VoxCPMServiceStub(channel)
        for seconds in (1.5, 6, 24):  # until the server has time to send audio
            if await samples_before_the_deadline(stub, seconds):
                break
        else:
            raise AssertionError("no audio is received")
        health = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await health(b"", timeout=300) == b"\x08\x01"


async def test_a_slow_reader_gets_all_audio(target, info):
    async with AsyncClient(target, timeout=300) as client:
        total = 0
        async with client.speak(LONG, max_steps=20, timesteps=4, seed=1, max_lead=0.5) as stream:
            async for chunk in stream:
                if not total:
                    await asyncio.sleep(1.0)
                total += chunk.sample_count
        assert stream.summary is not None
        assert total == stream.summary.total_samples == 20 * info.samples_per_step


async def test_a_stream_may_pause_its_text(target):
    async with AsyncClient(target, timeout=300) as client:
        async with client.session(max_steps=3, timesteps=4) as session:
            await session.send_text("Hello there.")
            await session.flush()
            await asyncio.sleep(5)
            await session.send_text("Are you still there?")
            await session.finish()
            assert sum([chunk.sample_count async for chunk in session])
        assert session.summary is not None and session.summary.segments == 2


async def test_a_sentence_is_spoken_before_more_text_arrives(target):
    """The client sends more text after the audio, like a language model that calls a tool."""
    options: SpeechOptions = {"max_steps": 5, "timesteps": 4, "timeout": 90}
    async with AsyncClient(target) as client, client.session(**options) as session:
        await session.send_text("Let me check that for you.")
        events = []
        async for chunk in session:
            events += [event for event in chunk.events if event.kind == "started"]
            if chunk.sample_count and len(events) == 1 and session.header is not None:
                await session.send_text(" Here it is. And")
                await session.send_text(" that is all")
                await session.finish()
                break
        events += [event async for chunk in session for event in chunk.events if event.kind == "started"]
    assert [(event.text, event.cut_reason) for event in events] == [
        ("Let me check that for you.", "pause"),
        ("Here it is.", "sentence"),
        ("And that is all", "flush"),
    ]


def test_the_header_names_the_voice(client, info):
    options = {"max_steps": 3, "timesteps": 4}
    assert client.say("Hello.", **options).header.voice == info.default_voice
    assert client.say("Hello.", no_voice=True, **options).header.voice == ""
    for name in info.presets[:2]:
        assert client.say("Hello.", voice=name, **options).header.voice == name
