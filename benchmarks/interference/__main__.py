"""Measure what the callers of a server do to each other: uploads, slow readers and a full queue.

    python -m benchmarks.interference --model demo --streams 1 --json interference.json

The first rows are the time between two messages of a stream, alone and while another client uploads recordings one
after the other. The next ones are of calls beside streams in all slots whose clients read half as fast as they could
play: the time until the first audio, and the silence that the listener hears after it. The last is the time until a
call is refused while all slots are taken and the queue is full. `--parts` chooses from streams, readers and refusals.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.measuring.deadline import within
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser, words
from benchmarks.measuring.statistics import quantile
from benchmarks.serving import servers
from voxcpm_client import AsyncClient, Exhausted
from voxcpm_grpc.audio import wav_bytes

RATE = 16000
SLOTS, QUEUE = 8, 4
SLOW_PACE = 0.5  # seconds of audio that a slow reader takes a second
SLOW_STEPS = 250
CALL_STEPS = 25
CALL_SECONDS = 2.0  # between two calls beside slow readers
PARTS = ("streams", "readers", "refusals")
TEXT = "The quick brown fox jumps over the lazy dog near the river bank, and nobody minds it at all today. "


async def stream(client: AsyncClient, steps: int, timesteps: int) -> list[float]:
    """The seconds between messages with audio, without the first of them."""
    times = []
    async with client.speak(TEXT, min_steps=steps, max_steps=steps, timesteps=timesteps) as speech:
        async for chunk in speech:
            if chunk.sample_count:
                times.append(time.perf_counter())
    return [after - before for before, after in pairwise(times[2:])]


async def read_slowly(client: AsyncClient, timesteps: int) -> None:
    """Start a long stream, and take its audio at SLOW_PACE."""
    loop, due = asyncio.get_running_loop(), 0.0
    async with client.speak(
        TEXT * 4, min_steps=SLOW_STEPS, max_steps=SLOW_STEPS, timesteps=timesteps, sample_rate=RATE
    ) as speech:
        async for chunk in speech:
            due = max(due, loop.time()) + chunk.sample_count / RATE / SLOW_PACE
            await asyncio.sleep(due - loop.time())


async def listen(client: AsyncClient, timesteps: int) -> tuple[float, float]:
    """The seconds until the first audio of a call, and those without audio after it. A refused call is made again."""
    began = time.perf_counter()
    while True:
        with contextlib.suppress(Exhausted):
            return await heard(client, timesteps, began)


async def heard(client: AsyncClient, timesteps: int, began: float) -> tuple[float, float]:
    first = ends = silent = 0.0
    async with client.speak(
        TEXT, min_steps=CALL_STEPS, max_steps=CALL_STEPS, timesteps=timesteps, sample_rate=RATE
    ) as speech:
        async for chunk in speech:
            if not chunk.sample_count:
                continue
            now = time.perf_counter()
            if not first:
                first, ends = now - began, now
            silent += max(0.0, now - ends)
            ends = max(now, ends) + chunk.sample_count / RATE
    return first, silent


async def beside_slow_readers(target: str, calls: int, timesteps: int) -> list[tuple[float, float]]:
    """The results of `listen` for calls that arrive one after the other."""
    async with AsyncClient(target, timeout=600) as client:
        slow = [asyncio.create_task(read_slowly(client, timesteps)) for _ in range(SLOTS)]
        listening = []
        for _ in range(calls):
            await asyncio.sleep(CALL_SECONDS)
            listening.append(asyncio.create_task(listen(client, timesteps)))
        results = await asyncio.gather(*listening)
        for task in slow:
            task.cancel()
        await asyncio.wait(slow)
    return results


@contextlib.asynccontextmanager
async def uploads(target: str, seconds: float) -> AsyncIterator[list[float]]:
    """Upload one recording after the other during the block, and one more; yields the seconds that each took."""
    took: list[float] = []
    rng, over = np.random.default_rng(), asyncio.Event()

    async def upload(client: AsyncClient) -> None:
        while not (took and over.is_set()):
            noise = rng.uniform(-0.3, 0.3, int(seconds * RATE)).astype(np.float32)
            began = time.perf_counter()
            await client.add_reference(wav_bytes(noise, RATE))
            took.append(time.perf_counter() - began)

    async with AsyncClient(target) as client, asyncio.TaskGroup() as group:
        group.create_task(upload(client))
        yield took
        over.set()


async def refusals(target: str, count: int, timesteps: int) -> list[float]:
    """The seconds until a call is refused, of `count` calls one after the other.

    Raises the errors of the streams that fill the queue: without them no call would be refused.
    """
    took: list[float] = []
    async with AsyncClient(target, retries=0, timeout=600) as client, asyncio.TaskGroup() as group:
        over = asyncio.Event()

        async def fill() -> None:
            while not over.is_set():
                with contextlib.suppress(Exhausted):
                    await stream(client, 200, timesteps)
                await asyncio.sleep(0.05)

        # More streams than fit: those that are refused try again, so the queue stays full. Streams whose listeners have
        # seconds of audio left give their slots to new ones, so that all may find room: then more streams join.
        filling = [group.create_task(fill()) for _ in range(2 * (SLOTS + QUEUE))]
        while len(took) < count:
            began = time.perf_counter()
            try:
                async with asyncio.timeout(10.0):
                    await client.say("Hello.", timesteps=timesteps, max_steps=3)
            except Exhausted:
                took.append(time.perf_counter() - began)
            except TimeoutError:
                pass  # the queue was not full yet
            else:
                filling.append(group.create_task(fill()))
        over.set()
        for task in filling:
            task.cancel()
    return took


def row(name: str, seconds: list[float]) -> dict[str, str | float]:
    """The row of a table, in milliseconds, which is also printed."""
    ordered = sorted(seconds)
    shares = {f"p{100 * share:g}_ms": 1e3 * quantile(ordered, share) for share in (0.5, 0.99)}
    found = {"name": name, "count": len(ordered), **shares, "max_ms": 1e3 * ordered[-1]}
    print("{name:32} {count:5} {p50_ms:8.1f} {p99_ms:8.1f} {max_ms:8.1f} ms".format(**found), flush=True)
    return found


async def measure(
    target: str, parts: Sequence[str], *, streams: int, steps: int, timesteps: int, seconds: float, calls: int
) -> list[dict[str, str | float]]:
    rows: list[dict[str, str | float]] = []
    if "streams" in parts:
        rows += await beside_uploads(target, streams, steps, timesteps, seconds)
    if "readers" in parts:
        results = await beside_slow_readers(target, calls, timesteps)
        rows.append(row("first audio beside slow readers", [first for first, _ in results]))
        rows.append(row("silence beside slow readers", [silent for _, silent in results]))
    if "refusals" in parts:
        rows.append(row("refusals", await refusals(target, calls, timesteps)))
    return rows


async def beside_uploads(
    target: str, streams: int, steps: int, timesteps: int, seconds: float
) -> list[dict[str, str | float]]:
    rows: list[dict[str, str | float]] = []
    async with AsyncClient(target, timeout=600) as client:

        async def gaps() -> list[float]:
            parts = await asyncio.gather(*(stream(client, steps, timesteps) for _ in range(streams)))
            return [gap for part in parts for gap in part]

        await gaps()
        rows.append(row("gaps alone", await gaps()))
        async with uploads(target, seconds) as took:
            rows.append(row("gaps beside uploads", await gaps()))
        rows.append(row("uploads", took))
    return rows


def main() -> None:
    parser = command_parser(__doc__)
    servers.add_flags(parser)
    parser.add_argument("--streams", type=int, default=1, help="streams beside the uploads")
    parser.add_argument("--steps", type=int, default=200, help="steps of each stream")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--upload-seconds", type=float, default=30.0, help="length of each recording")
    parser.add_argument("--calls", type=int, default=50, help="calls beside slow readers, and calls that are refused")
    parser.add_argument("--parts", type=words, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds; a run that takes longer fails")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options, extra = parser.parse_known_args()
    limits = ("--engine.max-slots", str(SLOTS), "--engine.max-queue", str(QUEUE))
    print(f"{'':32} {'count':>5} {'p50':>8} {'p99':>8} {'max':>8}")
    with servers.reached(options, [*limits, *extra]) as (target, *_):
        shape = {"streams": options.streams, "steps": options.steps, "timesteps": options.timesteps}
        measured = measure(target, options.parts, seconds=options.upload_seconds, calls=options.calls, **shape)
        rows = asyncio.run(within(options.limit, measured))
    if options.json:
        about = {"command": command(), "versions": versions("torch", "grpcio")}
        options.json.write_text(json.dumps(about | {"rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
