"""Measure a server with more devices and more fronts of one host, and find the part that limits it.

    python -m benchmarks.scaling --model demo --device-sets "cpu:1;cpu:2" --users 8 --steps 20 --name here
    python -m benchmarks.scaling --model DIR --device-sets "0;0,1;0,1,2,3" --fronts 1,2,4 --clients 24 --name h200

It starts one server for each set of devices. A closed loop of as many users as the engines have slots loads the server
to saturation, once for each count of fronts up to the number of devices. With `--ttfb-ms`, the command also searches
for the number of listeners in real time, as `benchmarks.capacity` does, through the most fronts. It reads the processor
time of each role and how busy the GPUs are.

With `--together` all servers start at once, with several engines on a GPU where the sets overlap, and are loaded one
after another. That saves time, but the memory must suffice for all.

The command writes scaling-NAME.json, .md and .png into `--out`, and with `--ttfb-ms` capacity-NAME-N for each set of N
devices. Flags that are not listed here go to the servers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from benchmarks.capacity import conditions, search
from benchmarks.capacity import page as capacity_page
from benchmarks.capacity.conditions import device_count
from benchmarks.measuring.flags import command_parser, floats, integers
from benchmarks.scaling import page, usage
from benchmarks.scaling.rows import Row, line, row, table
from benchmarks.scaling.usage import Sampler
from benchmarks.serving import loads, rows
from benchmarks.serving.clients import ClientProcesses
from benchmarks.serving.loads import LoadRunner, request_shape
from benchmarks.serving.servers import Server
from voxcpm_client import ModelInfo


def measure(
    server: Server, devices: str, info: ModelInfo, options: argparse.Namespace
) -> tuple[list[Row], list[dict[str, Any]]]:
    """A row for each count of fronts, and, if there are bounds, the capacity through the most fronts."""
    targets, count, first = server.targets(), device_count(devices), 0
    users = count * (options.users or info.max_slots)
    counts = sorted(fronts for fronts in options.fronts if fronts <= min(len(targets), count)) or [1]
    measured, capacities = [], []
    for fronts in counts:
        with ClientProcesses(targets[:fronts], options.clients) as clients:
            runner = LoadRunner(clients=clients, shape=request_shape(options), first=first)
            runner.warm_up(count)
            with Sampler(usage.roles(server.pid, clients.pids)) as sampler:
                calls = runner.closed(users)
            samples = sampler.samples(*rows.window("closed", calls))
            measured.append(row(devices, fronts, rows.row("closed", users, calls), samples))
            print(line(measured[-1]), flush=True)
            if options.ttfb_ms and fronts == counts[-1]:
                plan, utterance = conditions.plan(options), conditions.utterance(options, info)
                saturation = measured[-1].load
                trials = conditions.printed(search.search(runner, utterance, plan, saturation.audio_s_per_s))
                of = {"devices": devices, "device_count": count, "fronts": fronts}
                capacities.append(of | search.outcome(saturation, trials, plan))
            first = runner.first
    return measured, capacities


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="demo", help="demo, a directory, or a hub repository id")
    parser.add_argument(
        "--device-sets",
        default="0",
        help='devices of each server, separated by semicolons, such as "0;0,1;0,1,2,3" or "cpu:1;cpu:2"',
    )
    parser.add_argument("--fronts", type=integers, default=[1], help="counts of fronts, separated by commas")
    parser.add_argument("--together", action="store_true", help="start all servers at once")
    parser.add_argument(
        "--ttfb-ms",
        type=floats,
        default=[],
        help="bounds on the time until the first sound, in ms, for which to search for the number of listeners",
    )
    loads.add_flags(parser)
    conditions.add_flags(parser)
    options, extra = parser.parse_known_args()  # all others are the servers'

    measured: list[Row] = []
    capacities: list[dict[str, Any]] = []
    servers = {devices: _server(devices, options, extra) for devices in options.device_sets.split(";")}
    with ExitStack() as stack:
        if options.together:
            for server in servers.values():
                stack.enter_context(server)
            for server in servers.values():
                server.targets()  # waits: no load may run while another server starts
        print(rows.HEADINGS)
        for devices, server in servers.items():
            with nullcontext() if options.together else server:
                info = conditions.model_info(server.targets()[0])
                new_rows, new_capacities = measure(server, devices, info, options)
            measured += new_rows
            capacities += new_capacities
            about = conditions.conditions(options, info)
            for one in new_capacities:
                capacity_page.publish(about | one, options.out, f"capacity-{options.name}-{one['device_count']}")
            # After each server, so that one that fails does not lose the results of those before it.
            every = about | table(measured, capacities, together=options.together)
            page.publish(every, options.out, f"scaling-{options.name}")


def _server(devices: str, options: argparse.Namespace, extra: Sequence[str]) -> Server:
    fronts = min(max(options.fronts), device_count(devices))
    # Consecutive ports, so that clients can call some of the fronts only.
    flags = ["--devices", devices, "--fronts", str(fronts), "--front-ports", "consecutive"]
    return Server(options.model, options.timesteps, [*conditions.NO_LIMIT, *flags, *extra])


if __name__ == "__main__":
    main()
