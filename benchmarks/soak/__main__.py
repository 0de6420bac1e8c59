"""Measure whether a server grows: its memory, descriptors and voices while clients of all kinds call it.

    python -m benchmarks.soak --model demo --minutes 5 --name here
    python -m benchmarks.soak --model demo --requests 5000 --name here

Clients speak, break their streams off, interrupt them, upload voices, delete them and leave uploads unfinished, all at
random and without a pause. Samples are taken while nothing runs, after each of `--samples` equal parts of the time, so
that they can be compared. The first part warms the server up. The command writes soak-NAME.json, .md and .png.

With `--requests` the load is so many short requests instead, each with a text of its own.

    python -m benchmarks.soak --model demo --devices cpu:2 --minutes 3 --rate 1 --deaths 30 --name here

With `--deaths` requests of mixed lengths arrive at `--rate` a second, among them uploads, calls that are broken off and
interrupts, and after each so many seconds an engine is killed, stopped or drained. The command writes
soak-deaths-NAME.json, .md and .png: streams that end with an error or are late, and the first audio around a death.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import repeat

from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import add_output_flags, command_parser
from benchmarks.serving.clients import default_processes
from benchmarks.serving.servers import Server
from benchmarks.soak import deaths, deaths_page, page
from benchmarks.soak.actions import (
    ACTIONS,
    Action,
    Caller,
    attempt,
    caller_of,
    delete_abandoned,
    say_what_lacks,
    short_request,
)
from benchmarks.soak.processes import Sample, sample
from voxcpm_client import AsyncClient

SETTLE_SECONDS = 2.0  # until the server has ended the calls that were broken off


async def load(caller: Caller, users: int, turns: Iterable[Action], done: Counter[str]) -> None:
    """Run actions in so many tasks, which take them from `turns`."""
    waiting = iter(turns)

    async def user() -> None:
        for action in waiting:
            await attempt(action, caller, done)

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
    async with AsyncClient((await asyncio.to_thread(server.targets))[0]) as client:
        caller = await caller_of(client, chance)
        say_what_lacks(caller)
        began = time.monotonic()
        for part in range(samples):
            timed = until(began + 60 * minutes * (part + 1) / samples, chance)
            turns = repeat(short_request, requests // samples) if requests else timed
            await load(caller, users, turns, done)
            await asyncio.sleep(SETTLE_SECONDS)
            await delete_abandoned(client)
            voices = sum(voice.created is not None for voice in await client.voices())
            taken.append(sample(server.pid, seconds=time.monotonic() - began, calls=done.total(), voices=voices))
            print(page.line(taken[-1]), flush=True)
    return taken, done


def soak_deaths(options: argparse.Namespace) -> None:
    """Measure a server whose engines end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        admin = f"127.0.0.1:{free.getsockname()[1]}"
    parts = deaths.parts_of(
        options.clients,
        rate=options.rate,
        seconds=60 * options.minutes,
        steps=(options.min_steps, options.steps) if options.steps else None,
        seed=options.seed,
    )
    flags = ["--admin.listen", admin, "--fronts", options.fronts]
    flags += ["--devices", options.devices] if options.devices else []
    with Server(options.model, options.timesteps, flags) as server:
        run = asyncio.run(deaths.measure(server.targets(), admin, parts, every=options.deaths))
    found = {"command": command(), "versions": versions("torch", "grpcio"), **deaths.table_of(run)}
    deaths_page.publish(found, options.out, f"soak-deaths-{options.name}")


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="demo", help="demo, a directory, or a hub repository id")
    parser.add_argument("--minutes", type=float, default=5.0, help="length of the load")
    parser.add_argument("--requests", type=int, default=0, help="short requests to send, instead of calls of all kinds")
    parser.add_argument("--samples", type=int, default=10, help="samples to take")
    parser.add_argument("--users", type=int, default=6, help="calls at the same time")
    parser.add_argument("--seed", type=int, default=0, help="seed of the calls")
    parser.add_argument("--deaths", type=float, default=0.0, help="seconds between two ends of engines; 0: none end")
    parser.add_argument("--rate", type=float, default=1.0, help="with --deaths: requests a second")
    parser.add_argument("--devices", default="", help="with --deaths: devices of the server; default: its own choice")
    parser.add_argument("--fronts", default="1", help="with --deaths: fronts of the server, or auto")
    parser.add_argument("--timesteps", type=int, default=10, help="with --deaths: steps of the diffusion")
    parser.add_argument("--clients", type=int, default=default_processes(), help="with --deaths: client processes")
    parser.add_argument("--min-steps", type=int, default=1, help="with --deaths and --steps: least steps of a stream")
    parser.add_argument("--steps", type=int, default=0, help="with --deaths: most steps; 0: the text decides")
    add_output_flags(parser)
    options = parser.parse_args()

    if options.deaths:
        soak_deaths(options)
        return
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
