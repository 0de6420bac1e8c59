"""The longest callbacks of a front's event loop under load: CPU time that one caller takes from all others.

    python -m benchmarks.event_loop --model DIR

The front runs in this process and its engine in another one. Other work on the host lengthens callbacks: the row to
compare is that of the round whose longest callback is the shortest.
"""

from __future__ import annotations

import argparse
import asyncio
import heapq
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.hardware import ROOT, command, versions
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.sources import load
from voxcpm_server.app import running_server

LONGEST = 3  # callbacks of each round that are named


@dataclass(frozen=True)
class Round:
    """The callbacks of one load; the longest are pairs of CPU milliseconds and what ran, the longest first."""

    callbacks: int
    longest: tuple[tuple[float, str], ...]


class Watch:
    """Notes callbacks as they end."""

    def __init__(self) -> None:
        self._count = 0
        self._longest: list[tuple[float, str]] = []

    def note(self, seconds: float, handle: asyncio.Handle) -> None:
        self._count += 1
        if len(self._longest) < LONGEST:
            heapq.heappush(self._longest, (1e3 * seconds, repr(handle)))
        elif 1e3 * seconds > self._longest[0][0]:
            heapq.heapreplace(self._longest, (1e3 * seconds, repr(handle)))

    def round(self) -> Round:
        return Round(self._count, tuple(sorted(self._longest, reverse=True)))


@contextmanager
def watched() -> Iterator[Watch]:
    """Notes every callback that an asyncio loop runs in the block; CPU time is that of its thread."""
    run: Callable[[asyncio.Handle], None] = asyncio.Handle._run
    watch = Watch()

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        watch.note(time.thread_time() - began, handle)

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


async def measure(settings: Settings, rounds: int, steps: int) -> list[Round]:
    """One load after the other on a front of its own."""
    clients = [sys.executable, "-m", "benchmarks.front_clients", "--steps", str(steps)]
    measured = []
    async with running_server(settings) as server:
        for _ in range(rounds):
            with watched() as watch:
                await asyncio.to_thread(subprocess.run, [*clients, server.address], check=True, cwd=ROOT)
            measured.append(watch.round())
            print(line(measured[-1]), flush=True)
    return measured


def line(row: Round) -> str:
    """A round as it is printed."""
    words = (f"{milliseconds:.2f} ms {' '.join(what.split())[:100]}" for milliseconds, what in row.longest)
    return f"{row.callbacks} callbacks, the longest: " + "; ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="what the server serves")
    parser.add_argument("--rounds", type=int, default=5, help="loads, one after the other")
    parser.add_argument("--steps", type=int, default=2, help="most of each segment")
    parser.add_argument("--json", type=Path, help="write the table here too")
    options, extra = parser.parse_known_args()  # the rest goes to the server
    with tempfile.TemporaryDirectory() as voices:
        flags = ["--listen", "127.0.0.1:0", "--log-level", "warning", "--voices.url", voices]
        settings = load(["--model", options.model, *flags, *extra], {})
        rows = asyncio.run(measure(settings, options.rounds, options.steps))
    best = min(rows, key=lambda row: row.longest[0])
    print(f"best round: {line(best)}")
    table = {"command": command(), "versions": versions("torch", "grpcio"), "rows": [asdict(row) for row in rows]}
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
