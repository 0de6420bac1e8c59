"""Callers of a server: users who speak one request after another, or requests that arrive whether it keeps up or not.

Each runs in one of several processes with a client of its own, for one process of Python may be slower than the server.
All clocks are the host's monotonic one, which its processes share.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from time import perf_counter

from benchmarks.burst import text
from voxcpm_client import AsyncClient, SpeechError
from voxcpm_client.options import SpeechOptions

CONNECT_SECONDS = 60.0
HEAD_START = 0.3  # seconds between the last client's readiness and the first request


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """What every request asks for, but for its text."""

    steps: int
    timesteps: int
    chars: int
    patience: float = 300.0  # seconds that a call may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One request: its text's number, how long it is, and when it arrives (seconds after the start; None: as soon as
    the one before it has ended)."""

    serial: int
    steps: int
    at: float | None = None
    counts: bool = True


@dataclass(slots=True, kw_only=True)
class Call:
    """What became of a request. Times are those of the clock; `due` is when it should have been sent."""

    due: float
    sent: float
    counts: bool
    times: list[float] = field(default_factory=list)  # of each chunk with audio
    seconds: list[float] = field(default_factory=list)  # of audio in each
    server_ttfb: float = 0.0
    code: str = "OK"


Line = Sequence[Task]  # requests of one user, in order


def users(count: int, requests: int, speech: Speech, *, first: int, seed: int) -> list[Line]:
    """A line for each of `count` users: `requests` requests that count, after one of a random length that does not,
    so that the users do not march in step."""
    lengths = random.Random(seed)
    lines, serial = [], first
    for _ in range(count):
        warm_up = Task(serial=serial, steps=lengths.randint(1, speech.steps), counts=False)
        own = [Task(serial=serial + 1 + index, steps=speech.steps) for index in range(requests)]
        lines.append([warm_up, *own])
        serial += 1 + requests
    return lines


def arrivals(rate: float, requests: int, speech: Speech, *, first: int, seed: int) -> list[Line]:
    """A line for each of `requests` requests that arrive at random, independently, `rate` a second on average."""
    gaps, at, lines = random.Random(seed), 0.0, []
    for index in range(requests):
        lines.append([Task(serial=first + index, steps=speech.steps, at=at)])
        at += gaps.expovariate(rate)
    return lines


def run(target: str, lines: Sequence[Line], speech: Speech, *, processes: int) -> list[Call]:
    """Have the lines spoken by so many processes. Raises RuntimeError if one of them fails."""
    context = multiprocessing.get_context("spawn")
    shares = [lines[index::processes] for index in range(processes)]
    pipes, children = [], []
    try:
        for share in filter(None, shares):
            ours, theirs = context.Pipe()
            child = context.Process(target=_client, args=(theirs, target, share, speech), daemon=True)
            child.start()
            theirs.close()
            pipes.append(ours)
            children.append(child)
        for pipe in pipes:
            _receive(pipe, CONNECT_SECONDS)
        start = perf_counter() + HEAD_START
        for pipe in pipes:
            pipe.send(start)
        longest = max(len(line) for line in lines) * speech.patience
        return [call for pipe in pipes for call in _receive(pipe, longest)]
    finally:
        for child in children:
            child.kill()
            child.join()


def _receive(pipe: Connection, seconds: float) -> list[Call]:
    if not pipe.poll(seconds):
        raise RuntimeError(f"a client process said nothing for {seconds:.0f} s")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a client process failed; its traceback is above") from None


def _client(pipe: Connection, target: str, lines: Sequence[Line], speech: Speech) -> None:
    asyncio.run(_speak_all(pipe, target, lines, speech))


async def _speak_all(pipe: Connection, target: str, lines: Sequence[Line], speech: Speech) -> None:
    async with AsyncClient(target, timeout=speech.patience, retries=0) as client:
        await client.model_info()  # connected from here on
        pipe.send([])
        start = await asyncio.to_thread(pipe.recv)
        heard = await asyncio.gather(*(_speak_line(client, line, speech, start) for line in lines))
    pipe.send([call for calls in heard for call in calls])


async def _speak_line(client: AsyncClient, line: Line, speech: Speech, start: float) -> list[Call]:
    calls: list[Call] = []
    due = start
    for task in line:
        if task.at is not None:
            due = start + task.at
        await asyncio.sleep(due - perf_counter())
        calls.append(await _speak(client, task, speech, due))
        due = perf_counter()
    return calls


async def _speak(client: AsyncClient, task: Task, speech: Speech, due: float) -> Call:
    call = Call(due=due, sent=perf_counter(), counts=task.counts)
    steps = task.steps
    options: SpeechOptions = {
        "min_steps": steps,
        "max_steps": steps,
        "timesteps": speech.timesteps,
        "seed": task.serial,
    }
    try:
        async with client.speak(text(task.serial, speech.chars), **options) as stream:
            async for chunk in stream:
                if chunk.sample_count:
                    call.times.append(perf_counter())
                    call.seconds.append(chunk.seconds)
    except SpeechError as error:
        call.code = error.code
        return call
    if stream.summary is None or stream.summary.generated_steps != steps or stream.summary.segments != 1:
        call.code = "WRONG_LENGTH"
    else:
        call.server_ttfb = stream.summary.time_to_first_audio_seconds
    return call
