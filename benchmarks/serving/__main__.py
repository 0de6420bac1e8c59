"""Measure a server through real clients: users in a closed loop, and requests that arrive at a given rate.

    python -m benchmarks.serving --model demo --closed 1,4 --open 2 --requests 20 --steps 20
    python -m benchmarks.serving --target HOST:PORT --closed 1,8,16,32,64 --open 1,4,8,16,40 --plot serving.png

Without `--target` it starts a server. Clients in several processes send requests of a fixed length, each with a text of
its own and of equal token count; `--min-steps`, `--pieces`, `--voices` and `--speakers` make them less alike, and
`--uploads` stores recordings beside them. In the closed loop each user sends a request as soon as the one before it has
ended. In the open loop requests arrive at random (Poisson), and their times count from when they were due, or from its
last word if a text arrives in pieces. A request is refused if the server ends it with RESOURCE_EXHAUSTED or
UNAVAILABLE; clients do not retry. Flags that are not listed here go to the server that is started.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser, floats
from benchmarks.serving import servers
from benchmarks.serving.clients import ClientProcesses
from benchmarks.serving.loads import (
    MIN_EACH,
    LoadRunner,
    add_flags,
    add_mix_flags,
    clones,
    mixed,
    request_shape,
    store_voices,
)
from benchmarks.serving.rows import HEADINGS, Row, line, row


def measure(targets: Sequence[str], options: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each load."""
    shape = mixed(request_shape(options), options)
    for target in targets if options.voices else ():
        store_voices(target, clones(options))
    with ClientProcesses(targets, options.clients) as clients:
        loads = LoadRunner(clients=clients, shape=shape, seed=options.seed)
        loads.warm_up()
        for users in map(int, options.closed):
            each = max(MIN_EACH, -(-options.closed_requests // users))
            yield row("closed", users, loads.closed(users, each))
        for rate in options.open:
            yield row("open", rate, loads.open(rate, options.requests))


def main() -> None:
    parser = command_parser(__doc__)
    servers.add_flags(parser)
    parser.add_argument(
        "--closed", type=floats, default=[1, 8, 16, 32, 64], help='counts of users in the closed loop; "" for none'
    )
    parser.add_argument(
        "--open", type=floats, default=[1, 4, 8, 16, 40], help='arrivals a second in the open loop; "" for none'
    )
    parser.add_argument("--requests", type=int, default=300, help="requests at each rate of the open loop")
    parser.add_argument("--closed-requests", type=int, default=64, help="about as many requests of all users together")
    add_flags(parser)
    add_mix_flags(parser)
    parser.add_argument("--seed", type=int, default=1, help="seed of the random arrivals")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    parser.add_argument("--plot", type=Path, help="draw the table into this file")
    options, extra = parser.parse_known_args()  # all others are the server's

    table: dict[str, Any] = {"command": command(), "versions": versions("torch", "grpcio"), "rows": []}
    print(HEADINGS)
    with servers.reached(options, extra) as targets:
        for one in measure(targets, options):
            table["rows"].append(asdict(one))
            print(line(one), flush=True)
            if options.json:  # after each load, so that one that fails does not lose those before it
                options.json.write_text(json.dumps(table, indent=2) + "\n")
    if options.plot:
        from benchmarks.serving import figure

        figure.draw(table, options.plot)


if __name__ == "__main__":
    main()
