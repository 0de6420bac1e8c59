"""An open load on a server whose engines are killed, stopped and drained in turn."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from benchmarks.measuring.statistics import quantile
from benchmarks.measuring.texts import text
from benchmarks.soak.actions import ACTIONS
from voxcpm_client import AsyncClient, SpeechError

WAYS = ("kill", "stop", "drain")  # how an engine ends, in this order
SHORTEST, LONGEST = 40, 400  # characters of a text
OTHERS = 0.1  # the share of requests that upload, break off or interrupt
AROUND_SECONDS = 10.0  # from a death on, in which the first audio of new streams is told apart
READY_SECONDS = 180.0  # for an engine to come back


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


@dataclass
class Run:
    """A load that goes on, and what came of it."""

    client: AsyncClient
    admin: AsyncClient
    chance: random.Random
    began: float = field(default_factory=time.monotonic)
    streams: list[Listened] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    async def listen(self, number: int) -> None:
        """Speak a text of a random length, and note when its audio arrives."""
        one = Listened(self.now)
        self.streams.append(one)
        asked, played, arrived = time.monotonic(), 0.0, 0.0
        try:
            async with self.client.speak(text(number, self.chance.randint(SHORTEST, LONGEST))) as stream:
                async for chunk in stream:
                    if not chunk.sample_count:
                        continue
                    now = time.monotonic()
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
        except SpeechError as error:
            one.error = f"{type(error).__name__}: {error}"

    async def act(self) -> None:
        """Upload, break off or interrupt."""
        action = self.chance.choice(ACTIONS)
        try:
            await action(self.client, self.chance)
            self.done[action.__name__] += 1
        except SpeechError as error:
            self.done[f"{action.__name__}: {type(error).__name__}: {error}"] += 1

    async def load(self, rate: float, seconds: float) -> None:
        """Send so many requests a second, whatever becomes of them, and wait for all."""
        async with asyncio.TaskGroup() as group:
            number = 0
            while self.now < seconds:
                number += 1
                work = self.act() if self.chance.random() < OTHERS else self.listen(number)
                group.create_task(work)
                await asyncio.sleep(max(0.0, number / rate - self.now))

    async def end_engines(self, every: float, seconds: float) -> None:
        """End an engine after each so many seconds, as long as another one serves and there is time to come back."""
        for number in range(int(seconds / every)):
            await asyncio.sleep(max(0.0, (number + 0.5) * every - self.now))
            engines = (await self.admin.server_stats()).engines
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
                    await self.admin.drain_engine(engine.name, restart=True)
            await self._all_ready(death, engine.process_id)

    async def _all_ready(self, death: Death, pid: int) -> None:
        ends = time.monotonic() + READY_SECONDS
        while time.monotonic() < ends:
            engines = (await self.admin.server_stats()).engines
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


async def measure(targets: list[str], admin: str, *, rate: float, seconds: float, every: float, seed: int) -> Run:
    async with AsyncClient(targets[0], retries=0) as client, AsyncClient(admin, retries=0) as operator:
        run = Run(client, operator, random.Random(seed))
        ending = asyncio.create_task(run.end_engines(every, seconds))
        await run.load(rate, seconds)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        return run
