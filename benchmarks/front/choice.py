"""The number of fronts that a server chooses, beside the numbers around it, with paced engines on some of the cores."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.front.paced_server import started
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.statistics import late, quantile
from benchmarks.pages.files import write_json
from benchmarks.pages.markdown import grid, listed, ms
from benchmarks.serving.clients import ClientProcesses
from benchmarks.serving.requests import Call, RequestShape, open_loop
from voxcpm_grpc.settings.models import models
from voxcpm_grpc.settings.schema import Settings
from voxcpm_server.front_count import front_count

WARM_UP_SECONDS = 0.5
CALL_SECONDS = 30.0
MIN_CLIENT_CORES = 4  # beside those of the server; with fewer, clients and server share all
NOTE = (
    "An engine makes a chunk of 160 ms of audio for each of its streams every {step_ms:g} ms, as a GPU does with many "
    "streams, and needs no GPU. Requests of {steps} chunks arrive at random times, {rate:g} a second for each engine, "
    "but at most {core_rate:g} for each core, over {clients} connections. First audio counts from the time at which a "
    "request was due. `auto` is the number that a server with so many GPUs and cores chooses; its distance is its "
    "p99 less that of the best number."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One number of fronts. rate: requests a second. first_p50_ms, first_p99_ms: first audio. late: streams."""

    cores: int
    engines: int
    fronts: int
    auto: bool
    rate: float
    requests: int
    failed: int
    late: int
    first_p50_ms: float
    first_p99_ms: float


def chosen(engines: int, cores: int) -> int:
    """The number of fronts of a server with so many engines, each on a GPU of its own."""
    settings = Settings(devices=tuple(map(str, range(engines))))
    return front_count(settings, models(settings), gpus=engines, cores=cores).count


def candidates(auto: int) -> list[int]:
    """The chosen number, half of it and twice it, and one front."""
    return sorted({1, max(1, auto // 2), auto, 2 * auto})


def measure(options: argparse.Namespace) -> list[Row]:
    """Rows for each number of cores, of engines and of fronts, until `options.budget` seconds have passed."""
    there, ends = os.cpu_count() or 1, time.monotonic() + options.budget
    rows: list[Row] = []
    for cores in options.cores:
        if cores > there:
            print(f"{cores} cores: this host has {there}")
            continue
        for engines in options.engines:
            auto = chosen(engines, cores)
            # The chosen number first, in case that the time ends.
            for fronts in sorted(candidates(auto), key=lambda count: count != auto):
                if time.monotonic() > ends:
                    print(f"{cores} cores, {engines} engines, {fronts} fronts: no time is left")
                    continue
                rows.append(_row(options, cores, engines, fronts, auto))
                print(_line(rows[-1]), flush=True)
    return rows


def _row(options: argparse.Namespace, cores: int, engines: int, fronts: int, auto: int) -> Row:
    shape = RequestShape(steps=options.steps, timesteps=10, chars=options.chars)
    rate = min(options.rate * engines, options.core_rate * cores)
    others = set(range(cores, os.cpu_count() or 1))
    mine = os.sched_getaffinity(0)
    flags = {"engines": engines, "fronts": fronts, "cores": f"0-{cores - 1}", "step-ms": options.step_ms}
    with started(flags) as address:
        if len(others) >= MIN_CLIENT_CORES:
            os.sched_setaffinity(0, others)  # and the clients, which inherit it
        try:
            with ClientProcesses([address], options.clients) as clients:
                warm_up = max(options.clients, int(rate * WARM_UP_SECONDS))
                clients.run(open_loop(rate, warm_up, shape, first=0, seed=1), shape, timeout=CALL_SECONDS)
                load = open_loop(rate, int(rate * options.seconds), shape, first=warm_up, seed=2)
                calls: list[Call] = clients.run(load, shape, timeout=CALL_SECONDS)
        finally:
            os.sched_setaffinity(0, mine)
    good = [call for call in calls if call.code == "OK" and call.times]
    first = sorted(call.times[0] - call.due for call in good) or [float("inf")]
    return Row(
        cores=cores,
        engines=engines,
        fronts=fronts,
        auto=fronts == auto,
        rate=rate,
        requests=len(calls),
        failed=len(calls) - len(good),
        late=sum(late(call.times, call.seconds) for call in good),
        first_p50_ms=1e3 * quantile(first, 0.5),
        first_p99_ms=1e3 * quantile(first, 0.99),
    )


def _line(row: Row) -> str:
    auto = " (auto)" if row.auto else ""
    return (
        f"{row.cores:3d} cores {row.engines} engines {row.fronts:2d} fronts{auto:7s} {row.rate:4.0f}/s"
        f" first audio p50 {row.first_p50_ms:7.1f} ms p99 {row.first_p99_ms:7.1f} ms"
        f" late {row.late} failed {row.failed}"
    )


def distances(rows: Sequence[Row]) -> list[list[str]]:
    """For each number of cores and engines: the chosen number, the best one, and the distance between them."""
    lines: list[list[str]] = []
    for cores, engines in dict.fromkeys((row.cores, row.engines) for row in rows):
        those = [row for row in rows if (row.cores, row.engines) == (cores, engines)]
        best = min(those, key=lambda row: (row.failed, row.first_p99_ms))
        auto = next((row for row in those if row.auto), None)
        if auto is not None:
            more = auto.first_p99_ms - best.first_p99_ms
            figures = ms(auto.first_p99_ms), ms(best.first_p99_ms), f"{more:.1f}"
            lines.append([str(cores), str(engines), f"{auto.rate:.0f}", str(auto.fronts), str(best.fronts), *figures])
    return lines


def publish(rows: Sequence[Row], options: argparse.Namespace) -> None:
    """Write front-NAME.json and .md into `options.out`, and print the distances."""
    table: dict[str, Any] = {
        "command": command(),
        "versions": versions("grpcio", "protobuf", "uvloop", "pyzmq"),
        "step_ms": options.step_ms,
        "rows": [asdict(one) for one in rows],
    }
    found = distances(rows)
    for cores, engines, _, auto, best, p99, best_p99, more in found:
        print(f"{cores} cores, {engines} engines: auto {auto}, best {best}: p99 {p99} and {best_p99} ms, +{more}")
    name: str = f"front-{options.name}"
    folder: Path = options.out
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / f"{name}.json", table)
    lines = [
        [
            *(str(row.cores), str(row.engines), f"{row.rate:.0f}", f"{row.fronts}{' (auto)' if row.auto else ''}"),
            *(ms(row.first_p50_ms), ms(row.first_p99_ms), str(row.late), str(row.failed), str(row.requests)),
        ]
        for row in sorted(rows, key=lambda row: (row.cores, row.engines, row.fronts))
    ]
    sections = [
        f"# The number of fronts: {table['versions'].pop('device')}",
        NOTE.format_map(vars(options)),
        grid("cores|engines|requests/s|auto|best|p99 of auto, ms|of the best|distance", found),
        grid("cores|engines|requests/s|fronts|first audio p50, ms|p99|late|failed|requests", lines),
        f"```\n{table['command']}\n```",
        listed(table["versions"]),
    ]
    (folder / f"{name}.md").write_text("\n\n".join(sections) + "\n")
