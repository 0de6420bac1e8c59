"""Measure whether a server grows: its memory, descriptors and voices while clients of all kinds call it.

    python -m benchmarks.soak --model demo --minutes 5 --name here
    python -m benchmarks.soak --model demo --requests 5000 --name here

Clients speak, break their streams off, interrupt them, upload voices, delete them and leave uploads unfinished, all at
random and without a pause. Samples are taken while nothing runs, after each of `--samples` equal parts of the time, so
that they can be compared. The first part warms the server up. The command writes soak-NAME.json, .md and .png.

With `--requests` the load is so many short requests instead, each with a text of its own.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from itertools import repeat
from typing import Any

import numpy as np

from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import add_output_flags, command_parser
from benchmarks.measuring.texts import text
from benchmarks.serving.servers import Server
from benchmarks.soak import page
from benchmarks.soak.processes import Sample, sample
from voxcpm_client import AsyncClient, SpeechError
from voxcpm_grpc.audio import wav_bytes

RATE = 16000
SETTLE_SECONDS = 2.0  # until the server has ended the calls that were broken off
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


async def load(
    client: AsyncClient, users: int, turns: Iterable[Action], chance: random.Random, done: Counter[str]
) -> None:
    """Run actions in so many tasks, which take them from `turns`."""
    waiting = iter(turns)

    async def user() -> None:
        for action in waiting:
            try:
                await action(client, chance)
                done[action.__name__] += 1
            except SpeechError as error:
                done[f"{action.__name__}: {type(error).__name__}"] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(users):
            group.create_task(user())


def until(ends: float, chance: random.Random) -> Iterator[Action]:
    """Actions at random until a time of time.monotonic()."""
    while time.monotonic() < ends:
        yield chance.choice(ACTIONS)


async def measure(
    server: Server, minutes: float, requests: int, samples: int, users: int, seed: int
) -> tuple[list[Sample], Counter[str]]:
    """The load lasts so many minutes, or for so many short requests if they are more than 0."""
    chance, done, taken = random.Random(seed), Counter[str](), []
    began = time.monotonic()
    async with AsyncClient((await asyncio.to_thread(server.targets))[0]) as client:
        for part in range(samples):
            timed = until(began + 60 * minutes * (part + 1) / samples, chance)
            turns = repeat(short_request, requests // samples) if requests else timed
            await load(client, users, turns, chance, done)
            await asyncio.sleep(SETTLE_SECONDS)
            await delete_abandoned(client)
            voices = sum(voice.created is not None for voice in await client.voices())
            taken.append(sample(server.pid, seconds=time.monotonic() - began, calls=done.total(), voices=voices))
            print(page.line(taken[-1]), flush=True)
    return taken, done


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="demo", help="demo, a directory, or a hub repository id")
    parser.add_argument("--minutes", type=float, default=5.0, help="length of the load")
    parser.add_argument("--requests", type=int, default=0, help="short requests to send, instead of calls of all kinds")
    parser.add_argument("--samples", type=int, default=10, help="samples to take")
    parser.add_argument("--users", type=int, default=6, help="calls at the same time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the calls")
    add_output_flags(parser)
    options = parser.parse_args()

    with Server(options.model, 4, ["--decode-workers", "1"]) as server:
        taken, done = asyncio.run(
            measure(server, options.minutes, options.requests, options.samples, options.users, options.seed)
        )
    table = {
        "command": command(),
        "versions": versions("torch", "grpcio"),
        "calls": dict(sorted(done.items())),
        "samples": taken,
    }
    page.publish(table, options.out, f"soak-{options.name}")


if __name__ == "__main__":
    main()
