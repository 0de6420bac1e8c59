"""The calls of a soak: clients that speak, break off, interrupt, upload and leave uploads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import numpy as np

from benchmarks.measuring.texts import text
from voxcpm_client import AsyncClient, SpeechError
from voxcpm_grpc.audio import wav_bytes

RATE = 16000
TEXT = "The quick brown fox jumps over the lazy dog. Nobody minds it at all. "
ABANDONED = {"upload": "abandoned"}  # the label of uploads that are cancelled
FORMATS = ("pcm_s16le", "wav", "mp3", "ogg_opus", "flac", "mulaw")

Action = Callable[[AsyncClient, random.Random], Coroutine[Any, Any, None]]


async def speak(client: AsyncClient, chance: random.Random) -> None:
    await client.say(TEXT, format=chance.choice(FORMATS), max_steps=chance.randint(2, 12))


async def break_off(client: AsyncClient, chance: random.Random) -> None:
    left = chance.randint(0, 3)
    async with client.speak(TEXT * 3, max_steps=20) as stream:
        async for _ in stream:
            if not left:
                return
            left -= 1


async def interrupt(client: AsyncClient, chance: random.Random) -> None:
    async with client.session(max_steps=12) as session:
        for _ in range(chance.randint(1, 3)):
            await session.send_text(TEXT)
            await anext(session)
            await session.interrupt(played_samples=0)
        await session.send_text(TEXT)
        await session.finish()
        async for _ in session:
            pass


async def upload(client: AsyncClient, chance: random.Random) -> None:
    voice = await client.add_reference(recording(chance), preview=chance.random() < 0.5)
    with suppress(SpeechError):
        await client.say("Hello there.", voice=voice.id, max_steps=4)
    await client.delete_voice(voice.id)


async def leave_an_upload(client: AsyncClient, chance: random.Random) -> None:
    """Cancel an upload. A cancel that comes too late leaves the voice, which `delete_abandoned` deletes."""
    uploading = asyncio.create_task(client.add_reference(recording(chance), labels=ABANDONED))
    await asyncio.sleep(chance.uniform(0.0, 0.05))
    uploading.cancel()
    with suppress(asyncio.CancelledError, SpeechError):
        await uploading


async def delete_abandoned(client: AsyncClient) -> None:
    for voice in await client.voices(labels=ABANDONED):
        await client.delete_voice(voice.id)


async def short_request(client: AsyncClient, chance: random.Random) -> None:
    await client.say(text(chance.randrange(10**6), chance.randint(10, 80)), max_steps=chance.randint(2, 3))


ACTIONS: tuple[Action, ...] = (speak, speak, break_off, interrupt, upload, leave_an_upload)


def recording(chance: random.Random) -> bytes:
    """A new recording of two seconds or more, as a WAV file."""
    samples = np.random.default_rng(chance.getrandbits(64)).uniform(-0.3, 0.3, chance.randint(2, 4) * RATE)
    envelope = np.repeat(np.tile([1.0, 0.05], len(samples) // 3200 + 1), 1600)[: len(samples)]
    return wav_bytes((samples * envelope).astype(np.float32), RATE)
