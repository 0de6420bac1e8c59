"""What more devices and more fronts of one host bring, and which part of it limits them.

    python -m benchmarks.scaling --model demo --device-sets "cpu:1;cpu:2" --users 8 --steps 20 --name here
    python -m benchmarks.scaling --model DIR --device-sets "0;0,1;0,1,2,3" --fronts 1,2,4 --clients 24 --name h200

For each set of devices one server, loaded to saturation by a closed loop of as many users as its engines have slots,
once for each count of fronts up to that of the devices. With `--ttfb-ms` the users in real time are searched for too,
as in `benchmarks.capacity`, through the most fronts. Processor time is read for each role, and how busy the GPUs were.
With `--together` all servers start at once, several engines to a GPU where the sets overlap, and are loaded one after
another, which saves their starts; they need memory for all. Writes scaling-NAME.json, .md and .png into `--out`, and
with `--ttfb-ms` capacity-NAME-N for each set of N devices. Flags that are not listed here go to the servers.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import capacity, serving, usage
from benchmarks.load import Callers
from benchmarks.servers import Server
from benchmarks.serving import Loads
from benchmarks.usage import Look, Meter, Use
from voxcpm_client import ModelInfo

BUSY = 0.9  # share of the time from which on a thread can do no more
FULL = 0.95  # share of all cores, or of a GPU's time


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One server at saturation."""

    devices: str
    device_count: int
    fronts: int
    load: serving.Row
    uses: dict[str, Use]
    host_cores: float
    host_cores_there: int
    gpu_share: float | None
    limit: str


def limit(uses: dict[str, Use], host_share: float, gpu_share: float | None) -> str:
    """Which part can do no more. A part before the engines comes first: a GPU whose streams wait looks busy too."""
    if host_share >= FULL:
        return "the host's cores"
    for role in ("clients", "fronts"):
        if uses[role].busiest_thread >= BUSY:
            return role
    if gpu_share is not None and gpu_share >= FULL:
        return "GPUs"
    return "not seen"


def efficiencies(rows: Sequence[Row]) -> list[float]:
    """Of each row, its audio per device over the best of those rows with the fewest devices."""
    each = [row.load.audio_s_per_s / row.device_count for row in rows]
    fewest = min(row.device_count for row in rows)
    best = max(rate for row, rate in zip(rows, each, strict=True) if row.device_count == fewest)
    return [rate / best for rate in each]


def row(devices: str, fronts: int, loaded: serving.Row, looks: Sequence[Look]) -> Row:
    uses = usage.use(looks[0], looks[-1])
    cores, there = usage.host_cores(looks[0], looks[-1]), os.cpu_count() or 1
    numbers = [part.removeprefix("cuda:") for part in devices.split(",")]
    share = usage.gpu_share(looks, [int(number) for number in numbers if number.isdecimal()])
    return Row(
        devices=devices,
        device_count=capacity.device_count(devices),
        fronts=fronts,
        load=loaded,
        uses=uses,
        host_cores=cores,
        host_cores_there=there,
        gpu_share=share,
        limit=limit(uses, cores / there, share),
    )


def measure(
    server: Server, devices: str, info: ModelInfo, options: argparse.Namespace
) -> tuple[list[Row], list[dict[str, Any]]]:
    """A row for each count of fronts, and, if there are bounds, how many users in real time the most fronts serve."""
    targets, count, first = server.targets(), capacity.device_count(devices), 0
    users = count * (options.users or info.max_slots)
    counts = [fronts for fronts in options.fronts if fronts <= min(len(targets), count)] or [1]
    rows, capacities = [], []
    for fronts in counts:
        with Callers(targets[:fronts], options.clients) as callers:
            loads = Loads(callers=callers, speech=serving.speech(options), first=first)
            loads.warm_up(count)
            with Meter(usage.roles(server.pid, callers.pids)) as meter:
                calls = loads.closed(users)
            looks = meter.looks(*serving.window("closed", calls))
            rows.append(row(devices, fronts, serving.row("closed", users, calls), looks))
            print(line(rows[-1]), flush=True)
            if options.ttfb_ms and fronts == counts[-1]:
                plan, utterance = capacity.plan(options), capacity.utterance(options, info)
                trials = capacity.printed(capacity.search(loads, utterance, plan, rows[-1].load.audio_s_per_s))
                of = {"devices": devices, "device_count": count, "fronts": fronts}
                capacities.append(of | capacity.outcome(rows[-1].load, trials, plan))
            first = loads.first
    return rows, capacities


def line(row: Row) -> str:
    """A row as it is printed under `serving.HEADINGS`."""
    uses = ", ".join(f"{role} {use.cores:.1f} cores ({use.busiest_thread:.2f})" for role, use in row.uses.items())
    return f"{serving.line(row.load)}  devices {row.devices}, fronts {row.fronts}: {uses}, limit: {row.limit}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="what the servers serve")
    parser.add_argument("--device-sets", default="0", help='such as "0;0,1;0,1,2,3" or "cpu:1;cpu:2"')
    parser.add_argument("--fronts", type=_counts, default=[1], help="counts of fronts to call")
    parser.add_argument("--together", action="store_true", help="start all servers at once")
    parser.add_argument("--ttfb-ms", type=serving.numbers, default=[], help="bounds to find users in real time for")
    parser.add_argument("--name", default="here", help="of the files to write")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    serving.add_flags(parser)
    capacity.add_flags(parser)
    options, extra = parser.parse_known_args()  # the rest goes to the servers

    rows: list[Row] = []
    capacities: list[dict[str, Any]] = []
    servers = {devices: _server(devices, options, extra) for devices in options.device_sets.split(";")}
    with ExitStack() as stack:
        if options.together:
            for server in servers.values():
                stack.enter_context(server)
            for server in servers.values():
                server.targets()  # nothing is measured while another one starts
        print(serving.HEADINGS)
        for devices, server in servers.items():
            with nullcontext() if options.together else server:
                info = capacity.describe(server.targets()[0])
                more = measure(server, devices, info, options)
            rows += more[0]
            capacities += more[1]
            about = capacity.conditions(options, info)
            for one in more[1]:
                name = f"capacity-{options.name}-{one['device_count']}"
                capacity.publish(about | one, options.out, name, "capacity")
            # Each time, so that a server that fails does not lose those before it.
            every = about | table(rows, capacities, together=options.together)
            capacity.publish(every, options.out, f"scaling-{options.name}", "scaling")


def table(rows: Sequence[Row], capacities: Sequence[Mapping[str, Any]], *, together: bool) -> dict[str, Any]:
    shares = zip(rows, efficiencies(rows), strict=True)
    return {
        "together": together,
        "rows": [asdict(row) | {"efficiency": share} for row, share in shares],
        "capacities": list(capacities),
    }


def _server(devices: str, options: argparse.Namespace, extra: Sequence[str]) -> Server:
    fronts = min(max(options.fronts), capacity.device_count(devices))
    flags = ["--devices", devices, "--fronts", str(fronts), "--front-ports", "consecutive"]  # to call some of them only
    return Server(options.model, options.timesteps, [*capacity.UNBOUNDED, *flags, *extra])


def _counts(text: str) -> list[int]:
    return sorted(int(part) for part in text.split(","))


if __name__ == "__main__":
    main()
