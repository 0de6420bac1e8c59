"""Callers of a server: users who ask as soon as they have all audio, listeners who hear it out first, and requests that
arrive whether the server keeps up or not.

Each runs in one of several processes with a client of its own, for one process of Python may be slower than the server.
All clocks are the host's monotonic one, which its processes share.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, Self

from benchmarks.burst import playback_end, text
from voxcpm_client import AsyncClient, SpeechError
from voxcpm_client.options import SpeechOptions

CONNECT_SECONDS = 60.0
HEAD_START = 0.3  # seconds between the order to speak and the first request


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """What every request asks for, but for its text."""

    steps: int
    timesteps: int
    chars: int
    patience: float = 300.0  # seconds that a call may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One request: its text's number, how long it is, and when it is due: `at` seconds after the start, or else as soon
    as the one before it has ended, or been heard out."""

    serial: int
    steps: int
    at: float | None = None
    heard_out: bool = False
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


class Patient(Protocol):
    """The seconds that a call may take."""

    @property
    def patience(self) -> float: ...


Speak = Callable[[AsyncClient, Sequence[Any], Any, float], Awaitable[list[Any]]]
"""Speaks one line from a time of the clock on, and returns what became of its tasks; a function that can be imported by
name. The third argument is what `Callers.speak` was given for all lines."""


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


def listeners(
    count: int, speech: Speech, utterance: float, *, settle: float, seconds: float, first: int, seed: int
) -> list[Line]:
    """A line for each of `count` people who hear speech without a pause, of `utterance` seconds a request, and ask for
    the next when playback of the one before has ended.

    They are found at a random place of an utterance, so that requests come at random and at their lasting rate from the
    start. Those due in `seconds` count, after `settle` seconds in which the server fills up; due, that is, if nothing
    comes late.
    """
    places, lines, serial = random.Random(seed), [], first
    for _ in range(count):
        at = places.uniform(0, utterance)
        line: list[Task] = []
        while at < settle + seconds:
            task = Task(serial=serial, steps=speech.steps, heard_out=True, counts=at >= settle)
            line.append(task if line else replace(task, at=at))
            at += utterance
            serial += 1
        lines.append(line)
    return lines


def processes() -> int:
    """How many client processes this host bears beside a server."""
    return max(1, min(8, (os.cpu_count() or 2) // 2))


class Callers:
    """Client processes, connected as long as the block lasts, for one load after another.

    The processes take `targets` in turn; `speak_line` is what they do with a line, by default `Task` after `Task`.
    Raises RuntimeError if one of them fails.
    """

    def __init__(self, targets: Sequence[str], processes: int, speak_line: Speak | None = None) -> None:
        self._speak_line = speak_line or _speak_line
        self._targets = [targets[index % len(targets)] for index in range(processes)]
        self._pipes: list[Connection] = []
        self._children: list[Any] = []

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        try:
            for target in self._targets:
                ours, theirs = context.Pipe()
                child = context.Process(target=_client, args=(theirs, target, self._speak_line), daemon=True)
                child.start()
                theirs.close()
                self._pipes.append(ours)
                self._children.append(child)
            for pipe in self._pipes:
                _receive(pipe, CONNECT_SECONDS)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def speak(self, lines: Sequence[Sequence[Any]], speech: Patient) -> list[Any]:
        """Have the lines spoken, all at once, and wait for their end."""
        count = len(self._pipes)
        start = perf_counter() + HEAD_START
        for index, pipe in enumerate(self._pipes):
            pipe.send((lines[index::count], speech, start))
        longest = max(len(line) for line in lines) * speech.patience
        return [call for pipe in self._pipes for call in _receive(pipe, longest)]

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.join()


def _receive(pipe: Connection, seconds: float) -> list[Any]:
    if not pipe.poll(seconds):
        raise RuntimeError(f"a client process said nothing for {seconds:.0f} s")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a client process failed; its traceback is above") from None


def _client(pipe: Connection, target: str, speak_line: Speak) -> None:
    asyncio.run(_serve(pipe, target, speak_line))


async def _serve(pipe: Connection, target: str, speak_line: Speak) -> None:
    async with AsyncClient(target, timeout=CONNECT_SECONDS, retries=0) as client:
        await client.model_info()  # connected from here on
        pipe.send([])
        gc.freeze()  # walking all modules again would hold up every listener of this process
        while True:
            lines, speech, start = await asyncio.to_thread(pipe.recv)
            heard = await asyncio.gather(*(speak_line(client, line, speech, start) for line in lines))
            pipe.send([call for calls in heard for call in calls])


async def _speak_line(client: AsyncClient, line: Line, speech: Speech, start: float) -> list[Call]:
    calls: list[Call] = []
    due = start
    for task in line:
        if task.at is not None:
            due = start + task.at
        elif task.heard_out and calls[-1].times:
            due = playback_end(calls[-1].times, calls[-1].seconds)
        elif calls:
            due = perf_counter()
        await asyncio.sleep(due - perf_counter())
        calls.append(await _speak(client, task, speech, due))
    return calls


async def _speak(client: AsyncClient, task: Task, speech: Speech, due: float) -> Call:
    call = Call(due=due, sent=perf_counter(), counts=task.counts)
    steps = task.steps
    options: SpeechOptions = {
        "min_steps": steps,
        "max_steps": steps,
        "timesteps": speech.timesteps,
        "seed": task.serial,
        "timeout": speech.patience,
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
