"""An open load on a server whose engines are killed, stopped and drained in turn."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from benchmarks.measuring.statistics import quantile
from benchmarks.measuring.texts import text
from benchmarks.serving.clients import ClientProcesses
from benchmarks.soak.actions import ACTIONS, Caller, attempt, caller_of, failure, say_what_lacks
from voxcpm_client import AsyncClient
from voxcpm_client.values.options import SpeechOptions

WAYS = ("kill", "stop", "drain")  # how an engine ends, in this order
SHORTEST, LONGEST = 40, 400  # characters of a text
OTHERS = 0.1  # the share of requests that upload, break off or interrupt
AROUND_SECONDS = 10.0  # from a death on, in which the first audio of new streams is told apart
READY_SECONDS = 180.0  # for an engine to come back
LONGEST_SECONDS = 7200.0  # of a load and its last streams
MOST_PARTS = 64  # of a load; the texts of its parts differ


@dataclass
class Listened:
    """A stream, as a listener meets it who plays the audio as soon as it arrives.

    began: seconds since the start of the load
    first_audio: seconds from the request on; None without audio
    outage: the longest wait for a chunk, in seconds
    late: the time without audio
    held: the most audio that the listener held when a wait began that was longer, in seconds
    continuations: times that another engine went on with it
    """

    began: float
    first_audio: float | None = None
    outage: float = 0.0
    late: float = 0.0
    held: float = 0.0
    continuations: int = 0
    error: str = ""


@dataclass
class Death:
    """An engine that ended at a time since the start of the load. ready: when all took requests again"""

    at: float
    engine: str
    way: str
    ready: float | None = None


@dataclass(frozen=True)
class Part:
    """The part of a load that one client process sends.

    rate: requests a second. seconds: length of the load. steps: the least and the most of a stream; None: its text
    decides. seed: of the requests.
    """

    rate: float
    seconds: float
    steps: tuple[int, int] | None
    seed: int


class Listener:
    """A caller that sends requests, and what came of them. began: the clock at which the load starts."""

    def __init__(self, caller: Caller, part: Part, began: float) -> None:
        self.caller, self.part, self.began = caller, part, began
        self.chance = caller.chance
        self.streams: list[Listened] = []
        self.done: Counter[str] = Counter()

    @property
    def now(self) -> float:
        return perf_counter() - self.began

    async def listen(self, number: int) -> None:
        """Speak a text of a random length, and note when its audio arrives."""
        one = Listened(self.now)
        self.streams.append(one)
        options: SpeechOptions = {"seed": number}
        if self.part.steps:
            options["min_steps"] = options["max_steps"] = self.chance.randint(*self.part.steps)
        asked, played, arrived = perf_counter(), 0.0, 0.0
        try:
            words = text(number, self.chance.randint(SHORTEST, LONGEST))
            async with self.caller.client.speak(words, **options) as stream:
                async for chunk in stream:
                    if not chunk.sample_count:
                        continue
                    now = perf_counter()
                    if one.first_audio is None:
                        one.first_audio, played = now - asked, now
                    else:
                        one.outage = max(one.outage, now - arrived)
                    if now > played:
                        one.late += now - played
                        one.held = max(one.held, played - arrived)
                    played = max(played, now) + chunk.sample_count / chunk.sample_rate
                    arrived = now
                one.continuations = stream.summary.continuations if stream.summary else 0
        except Exception as error:  # the load goes on whatever becomes of a stream
            one.error = failure(error)

    async def act(self) -> None:
        """Upload, break off or interrupt."""
        await attempt(self.chance.choice(ACTIONS), self.caller, self.done)

    async def load(self) -> None:
        """Send the requests at their times, whatever becomes of them, and wait for all."""
        await asyncio.sleep(max(0.0, -self.now))
        async with asyncio.TaskGroup() as group:
            number = 0
            while self.now < self.part.seconds:
                number += 1
                serial = number * MOST_PARTS + self.part.seed % MOST_PARTS
                group.create_task(self.act() if self.chance.random() < OTHERS else self.listen(serial))
                await asyncio.sleep(max(0.0, number / self.part.rate - self.now))


async def send(client: AsyncClient, parts: Sequence[Part], _: Any, start: float) -> list[Any]:
    """The streams of a part of a load, and its other calls. For `ClientProcesses`."""
    caller = await caller_of(client, random.Random(parts[0].seed))
    listener = Listener(caller, parts[0], start)
    await listener.load()
    return [listener.streams, listener.done]


@dataclass
class Run:
    """A load, and what came of it."""

    began: float = field(default_factory=perf_counter)
    streams: list[Listened] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    @property
    def now(self) -> float:
        return perf_counter() - self.began

    async def end_engines(self, admin: AsyncClient, every: float, seconds: float) -> None:
        """End an engine after each so many seconds, as long as another one serves and there is time to come back."""
        for number in range(int(seconds / every)):
            await asyncio.sleep(max(0.0, (number + 0.5) * every - self.now))
            engines = (await admin.server_stats()).engines
            ready = [engine for engine in engines if engine.state == "ready"]
            way = WAYS[number % len(WAYS)]
            if way == "drain" and len(ready) < 2:
                continue
            engine = ready[number % len(ready)]
            death = Death(self.now, engine.name, way)
            self.deaths.append(death)
            match way:
                case "kill":
                    os.kill(engine.process_id, signal.SIGKILL)
                case "stop":
                    os.kill(engine.process_id, signal.SIGSTOP)
                case "drain":
                    await admin.drain_engine(engine.name, restart=True)
            await self._all_ready(admin, death, engine.process_id)

    async def _all_ready(self, admin: AsyncClient, death: Death, pid: int) -> None:
        ends = perf_counter() + READY_SECONDS
        while perf_counter() < ends:
            engines = (await admin.server_stats()).engines
            if all(one.state == "ready" and one.process_id not in (0, pid) for one in engines):
                death.ready = self.now
                return
            await asyncio.sleep(0.2)


def table_of(run: Run) -> dict[str, Any]:
    """The results of a load, as the page shows them."""
    heard = [one for one in run.streams if one.first_audio is not None]
    around = [one for one in heard if _death_before(run, one) is not None]
    late = [one for one in heard if one.late > 0]
    outage = max((one.outage for one in run.streams if one.continuations), default=0.0)
    return {
        "streams": len(run.streams),
        "continued": sum(one.continuations > 0 for one in run.streams),
        "errors": dict(Counter(one.error for one in run.streams if one.error)),
        "late": len(late),
        "late_with_enough_audio": sum(one.held > outage for one in late),
        "longest_outage_of_continued": outage,
        "first_audio_ms": quantiles(heard),
        "first_audio_around_ms": quantiles(around),
        "other_calls": dict(sorted(run.done.items())),
        "deaths": [vars(death) for death in run.deaths],
        "points": [[one.began, 1e3 * (one.first_audio or 0.0), one.late, one.continuations] for one in heard],
    }


def quantiles(streams: list[Listened]) -> dict[str, float]:
    """The time to the first audio, in milliseconds."""
    ordered = sorted(1e3 * one.first_audio for one in streams if one.first_audio is not None)
    return {f"p{round(100 * q)}": quantile(ordered, q) for q in (0.5, 0.9, 0.99)} if ordered else {}


def _death_before(run: Run, one: Listened) -> Death | None:
    return next((death for death in run.deaths if 0 <= one.began - death.at < AROUND_SECONDS), None)


async def measure(targets: Sequence[str], admin: str, parts: Sequence[Part], *, every: float) -> Run:
    """Send the parts of a load, each from a process of its own, while engines end."""
    async with AsyncClient(targets[0]) as client:
        say_what_lacks(await caller_of(client, random.Random()))
    with ClientProcesses(targets, len(parts), send) as clients:
        async with AsyncClient(admin, retries=0) as operator:
            run = Run()
            ending = asyncio.create_task(run.end_engines(operator, every, parts[0].seconds))
            found = await asyncio.to_thread(clients.run, [[part] for part in parts], None, timeout=LONGEST_SECONDS)
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
    for streams, done in zip(found[::2], found[1::2], strict=True):
        run.streams += streams
        run.done += done
    run.streams.sort(key=lambda one: one.began)
    return run


def parts_of(processes: int, *, rate: float, seconds: float, steps: tuple[int, int] | None, seed: int) -> list[Part]:
    """A load in so many parts."""
    return [Part(rate / processes, seconds, steps, seed * MOST_PARTS + index) for index in range(processes)]
