"""Measure the longest callbacks of a front's event loop under load. A long callback delays all other calls.

    python -m benchmarks.event_loop --model DIR

The front runs in this process and its engine in another one. Other work on the host makes callbacks longer, so compare
the round whose longest callback is the shortest. Flags that are not listed here go to the server.
"""

from __future__ import annotations

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

from benchmarks.measuring.environment import ROOT, command, versions
from benchmarks.measuring.flags import command_parser
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.sources import load
from voxcpm_server.app import running_server

LONGEST = 3  # callbacks of each round in the table


@dataclass(frozen=True)
class Round:
    """The callbacks of one load. The longest come first, as pairs of CPU time in ms and the callback's description."""

    callbacks: int
    longest: tuple[tuple[float, str], ...]


class Recorder:
    """Counts callbacks and keeps the longest."""

    def __init__(self) -> None:
        self._count = 0
        self._longest: list[tuple[float, str]] = []

    def add(self, seconds: float, handle: asyncio.Handle) -> None:
        self._count += 1
        if len(self._longest) < LONGEST:
            heapq.heappush(self._longest, (1e3 * seconds, repr(handle)))
        elif 1e3 * seconds > self._longest[0][0]:
            heapq.heapreplace(self._longest, (1e3 * seconds, repr(handle)))

    def round(self) -> Round:
        return Round(self._count, tuple(sorted(self._longest, reverse=True)))


@contextmanager
def recorded() -> Iterator[Recorder]:
    """Record the CPU time of every callback that an asyncio loop runs in the block."""
    run: Callable[[asyncio.Handle], None] = asyncio.Handle._run
    recorder = Recorder()

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        recorder.add(time.thread_time() - began, handle)

    asyncio.Handle._run = timed  # type: ignore[method-assign]
    try:
        yield recorder
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


async def measure(settings: Settings, rounds: int, steps: int) -> list[Round]:
    """Start a front, and run one load after the other on it."""
    clients = [sys.executable, "-m", "benchmarks.event_loop.clients", "--steps", str(steps)]
    measured = []
    async with running_server(settings) as server:
        for _ in range(rounds):
            with recorded() as recorder:
                await asyncio.to_thread(subprocess.run, [*clients, server.address], check=True, cwd=ROOT)
            measured.append(recorder.round())
            print(line(measured[-1]), flush=True)
    return measured


def line(row: Round) -> str:
    """A round, on one line."""
    words = (f"{ms:.2f} ms {' '.join(callback.split())[:100]}" for ms, callback in row.longest)
    return f"{row.callbacks} callbacks, the longest: " + "; ".join(words)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="demo", help="demo, a directory, or a hub repository id")
    parser.add_argument("--rounds", type=int, default=5, help="loads, one after the other")
    parser.add_argument("--steps", type=int, default=2, help="most steps of each segment")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options, extra = parser.parse_known_args()  # all others are the server's
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
