"""Measure the errors of the times of words, on sentences whose words have known times.

    python -m benchmarks.word_times --json word-times.json --page word-times.md

Flite speaks 100 sentences with two voices through a server, at the pace of speech; it knows when it says each word.
They are spoken with the bundled aligner, and without one, when times are estimated from the text. Needs pocketsphinx,
psutil and Debian's flite.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser
from benchmarks.pages.files import write_json
from benchmarks.word_times.calls import SENTENCES, first_audio, measure
from benchmarks.word_times.page import HEADS, line, render
from benchmarks.word_times.rows import Row, row
from benchmarks.word_times.served import served

MODES = {"aligned": ("english",), "estimated": ()}
STREAMS, ROUNDS = 30, 6  # with times, and as many without, that begin together
ALIGNER = "align"  # in the title of its process


async def measured(mode: str, sentences: int, pace: float) -> Row:
    """The row of a mode."""
    async with served(MODES[mode], pace) as address:
        await measure(address, SENTENCES[:1])  # loads what the first call loads
        before = _cpu_seconds()
        calls = await measure(address, SENTENCES[:sentences])
        return row(mode, calls, _cpu_seconds() - before)


async def beside() -> dict[str, float]:
    """The medians of the time to the first audio of streams with times, and of streams beside them without."""
    async with served(MODES["aligned"], 1.0) as address:
        await first_audio(address, STREAMS, 1)  # loads what the first calls load
        timed, plain = await first_audio(address, STREAMS, ROUNDS)
    return {
        "streams": STREAMS,
        "rounds": ROUNDS,
        "with_ms": 1e3 * statistics.median(timed),
        "without_ms": 1e3 * statistics.median(plain),
    }


def _cpu_seconds() -> float:
    """The CPU time of the aligner's process; 0 if there is none."""
    times = [child.cpu_times() for child in psutil.Process().children() if ALIGNER in " ".join(child.cmdline())]
    return sum(one.user + one.system for one in times)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--sentences", type=int, default=len(SENTENCES), help="number of sentences")
    parser.add_argument("--pace", type=float, default=1.0, help="seconds of speech that are made in a second")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--page", type=Path, help="also write the table to this Markdown page")
    options = parser.parse_args()
    logging.getLogger("voxcpm_client").setLevel(logging.ERROR)  # it warns that estimates are estimates
    table: dict[str, Any] = {
        "command": command(),
        "run": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": versions("grpcio", "pocketsphinx"),
        "rows": [],
    }
    print(HEADS)
    for mode in MODES:
        found = asdict(asyncio.run(measured(mode, options.sentences, options.pace)))
        table["rows"].append(found)
        print("|".join(line(found)), flush=True)
    table["first_audio"] = asyncio.run(beside())
    print(
        "first audio beside each other: {with_ms:.0f} ms with times, {without_ms:.0f} ms without".format(
            **table["first_audio"]
        )
    )
    if options.json:
        write_json(options.json, table)
    if options.page:
        options.page.write_text(render(table))


if __name__ == "__main__":
    main()
