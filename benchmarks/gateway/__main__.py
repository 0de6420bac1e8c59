"""Measure the time to the first audio through the HTTP gateway, beside that of gRPC.

    python -m benchmarks.gateway --model demo --users 1,16 --name gateway
    python -m benchmarks.gateway --model DIR --users 1,16 --rounds 40 --name gateway-h200
    python -m benchmarks.gateway --step-ms 10 --users 1,16,64 --name gateway-paced

A server with `--http` runs, and so many users at the same time. Its speech is a model's, or with `--step-ms` that of an
engine that makes a chunk for every stream in each step. In each round a user speaks one text twice, by gRPC and by HTTP
in turns, with the same options, so that both meet the same load. A connection stays open from one call to the next, as
clients keep it. The first round warms up and does not count. The command writes NAME.json and NAME.md into `--out`.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict

from benchmarks.front.paced_server import started
from benchmarks.gateway import page
from benchmarks.gateway.calls import Sample, Task, run_users
from benchmarks.gateway.rows import HEADINGS, Row, line, row
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import add_output_flags, command_parser, integers
from benchmarks.serving.clients import default_processes
from benchmarks.serving.servers import Server


def measure(options: argparse.Namespace, target: str, http: tuple[str, int]) -> list[Row]:
    """The rows of a server that runs, one for each number of users."""
    rows: list[Row] = []
    print(HEADINGS)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.clients, context) as clients:
        for users in options.users:
            shares = [users // options.clients + (index < users % options.clients) for index in range(options.clients)]
            tasks = [
                Task(target, http, share, sum(shares[:index]), options.rounds, options.chars, options.max_steps)
                for index, share in enumerate(shares)
                if share
            ]
            samples: Sequence[Sample] = [sample for found in clients.map(run_users, tasks) for sample in found]
            rows.append(row(users, samples))
            print(line(rows[-1]), flush=True)
    return rows


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _answers(host: str, port: int) -> None:
    """Wait until the gateway accepts connections."""
    _, writer = await asyncio.open_connection(host, port)
    writer.close()


@contextmanager
def _served(options: argparse.Namespace, port: int) -> Iterator[str]:
    """The address of a server whose gateway listens on a port."""
    http = f"127.0.0.1:{port}"
    if options.step_ms:
        with started({"step-ms": options.step_ms, "http": http}) as target:
            yield target
        return
    limits = ("--limits.max-streams-per-connection", "0", "--limits.max-streams-per-caller", "0")
    with Server(options.model, options.timesteps, ["--http", http, *limits, *options.serve]) as server:
        [target] = server.targets()
        yield target


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--model", default="demo", help="model of the server: demo, a directory, or a repository id")
    parser.add_argument("--step-ms", type=float, help="time of a step of an engine without a model, instead of --model")
    parser.add_argument("--timesteps", type=int, default=10, help="flow-matching steps")
    parser.add_argument("--users", type=integers, default=[1, 16], help="numbers of users at the same time")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each user, after one that warms up")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--max-steps", type=int, default=12, help="largest number of steps of a segment")
    parser.add_argument("--clients", type=int, default=default_processes(), help="client processes")
    parser.add_argument("--serve", nargs="*", default=[], metavar="FLAG", help="more flags of the server")
    add_output_flags(parser, name="gateway")
    options = parser.parse_args()
    port = free_port()
    with _served(options, port) as target:
        asyncio.run(_answers("127.0.0.1", port))
        rows = measure(options, target, ("127.0.0.1", port))
    table = {
        "command": command(),
        "versions": versions("grpcio", "protobuf", "uvloop", "starlette", "uvicorn"),
        "model": options.model,
        "step_ms": options.step_ms,
        "rounds": options.rounds,
        "rows": [asdict(one) for one in rows],
    }
    page.publish(table, options.out, options.name)


if __name__ == "__main__":
    main()
