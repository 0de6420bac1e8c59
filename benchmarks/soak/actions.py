"""The calls of a soak: clients that speak, break off, interrupt, upload and leave uploads."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.measuring.texts import text
from voxcpm_client import AsyncClient, SpeechError
from voxcpm_grpc.audio import wav_bytes

RATE = 16000
TEXT = "The quick brown fox jumps over the lazy dog. Nobody minds it at all. "
ABANDONED = {"upload": "abandoned"}  # the label of uploads that are cancelled
FORMATS = ("pcm_s16le", "wav", "mp3", "ogg_opus", "flac", "mulaw")


@dataclass(frozen=True)
class Caller:
    """A client, its random choices, and the formats that it asks for."""

    client: AsyncClient
    chance: random.Random
    formats: Sequence[str]


Action = Callable[[Caller], Coroutine[Any, Any, None]]


async def caller_of(client: AsyncClient, chance: random.Random) -> Caller:
    """A caller that asks for those of FORMATS that the server announces: without PyAV it lacks the compressed ones."""
    announced = (await client.model_info()).encodings
    return Caller(client, chance, tuple(one for one in FORMATS if one in announced))


def say_what_lacks(caller: Caller) -> None:
    """Print which of FORMATS the server does not have."""
    if lacking := [one for one in FORMATS if one not in caller.formats]:
        print(f"the server has no {', '.join(lacking)}: no call asks for them", flush=True)


async def attempt(action: Action, caller: Caller, done: Counter[str]) -> None:
    """Run an action and count it, as a failure if it raises: a load goes on whatever becomes of its calls."""
    try:
        await action(caller)
        done[action.__name__] += 1
    except Exception as error:
        done[f"{action.__name__}: {failure(error)}"] += 1


def failure(error: Exception) -> str:
    """The kind and the message of an error, without the id of its request, so that equal ones count together."""
    return f"{type(error).__name__}: {error.message if isinstance(error, SpeechError) else error}"


async def speak(caller: Caller) -> None:
    await caller.client.say(TEXT, format=caller.chance.choice(caller.formats), max_steps=caller.chance.randint(2, 12))


async def break_off(caller: Caller) -> None:
    left = caller.chance.randint(0, 3)
    async with caller.client.speak(TEXT * 3, max_steps=20) as stream:
        async for _ in stream:
            if not left:
                return
            left -= 1


async def interrupt(caller: Caller) -> None:
    async with caller.client.session(max_steps=12) as session:
        for _ in range(caller.chance.randint(1, 3)):
            await session.send_text(TEXT)
            await anext(session)
            await session.interrupt(played_samples=0)
        await session.send_text(TEXT)
        await session.finish()
        async for _ in session:
            pass


async def upload(caller: Caller) -> None:
    voice = await caller.client.add_reference(recording(caller.chance), preview=caller.chance.random() < 0.5)
    with suppress(SpeechError):
        await caller.client.say("Hello there.", voice=voice.id, max_steps=4)
    await caller.client.delete_voice(voice.id)


async def leave_an_upload(caller: Caller) -> None:
    """Cancel an upload. A cancel that comes too late leaves the voice, which `delete_abandoned` deletes."""
    uploading = asyncio.create_task(caller.client.add_reference(recording(caller.chance), labels=ABANDONED))
    await asyncio.sleep(caller.chance.uniform(0.0, 0.05))
    uploading.cancel()
    with suppress(asyncio.CancelledError, SpeechError):
        await uploading


async def delete_abandoned(client: AsyncClient) -> None:
    for voice in await client.voices(labels=ABANDONED):
        await client.delete_voice(voice.id)


async def short_request(caller: Caller) -> None:
    await caller.client.say(
        text(caller.chance.randrange(10**6), caller.chance.randint(10, 80)), max_steps=caller.chance.randint(2, 3)
    )


ACTIONS: tuple[Action, ...] = (speak, speak, break_off, interrupt, upload, leave_an_upload)


def recording(chance: random.Random) -> bytes:
    """A new recording of two seconds or more, as a WAV file."""
    samples = np.random.default_rng(chance.getrandbits(64)).uniform(-0.3, 0.3, chance.randint(2, 4) * RATE)
    envelope = np.repeat(np.tile([1.0, 0.05], len(samples) // 3200 + 1), 1600)[: len(samples)]
    return wav_bytes((samples * envelope).astype(np.float32), RATE)
