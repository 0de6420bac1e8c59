"""Measure the CPU time of a chunk and of an RPC in the one thread of a front, and their delay through it.

    python -m benchmarks.front --streams 16,64,128 --step-ms 30 --json front.json

A whole server runs in this process. Its engine, in a process of its own, makes 160 ms of audio for every stream at a
fixed rate, all in one message, as real engines do. Clients in other processes keep that many streams open: a user sends
a request as soon as the one before it has ended. Each row needs two loads, of long and of short requests; their CPU
times give the cost of a chunk and the cost of an RPC. The cheapest of `--repeats` counts, because other work on the
host can only add to it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path

from benchmarks.front import paced_engine
from benchmarks.front.calls import TimedCall, run_user
from benchmarks.front.rows import HEADINGS, Load, Row, line, row
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import command_parser, integers
from benchmarks.serving.clients import HEAD_START, ClientProcesses, default_processes
from benchmarks.serving.requests import RequestShape, UserRequests, closed_loop
from voxcpm_grpc.pool.engine_call import EngineCall
from voxcpm_grpc.pool.engine_pool import LEAD_CHUNKS, EnginePool
from voxcpm_grpc.pool.handle import ProcessHandle
from voxcpm_grpc.request import Event, Request
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_server.app import running_server
from voxcpm_server.main import loop_factory

SHORT_SHARE = 10  # steps of a long request for each step of a short one
SHORT_REQUESTS = 5  # short requests of a user for each long one
COLLECT_SECONDS = 0.2  # after the clients are done, until the front has ended the last RPCs


class RecordingPool(EnginePool):
    """Records when the front calls the pool, by the seed of the request."""

    def __init__(self, step_seconds: float) -> None:
        launch = lambda: ProcessHandle(paced_engine.MakePaced(step_seconds))  # noqa: E731 - a Launch
        super().__init__([launch])
        self.called: dict[int, float] = {}

    def generate(
        self, request: Request, *, lead_chunks: int = LEAD_CHUNKS, grant_on_read: bool = True
    ) -> EngineCall[Event]:
        self.called[request.sampling.seed] = time.perf_counter()
        return super().generate(request, lead_chunks=lead_chunks, grant_on_read=grant_on_read)


async def run_load(
    pool: RecordingPool, clients: ClientProcesses, users: Sequence[UserRequests], shape: RequestShape
) -> Load:
    """Run a load, and measure the CPU time of this thread, which does nothing but serve it."""
    began, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
    calls: list[TimedCall] = await asyncio.to_thread(clients.run, users, shape)
    await asyncio.sleep(COLLECT_SECONDS)
    thread_seconds = time.thread_time() - thread
    counted = [call for call in calls if call.counts]
    return Load(
        streams=len(users),
        rpcs=len(calls),
        chunks=sum(len(call.delays) for call in calls),
        seconds=time.perf_counter() - began - COLLECT_SECONDS - HEAD_START,
        thread_seconds=thread_seconds,
        other_seconds=time.process_time() - process - thread_seconds,
        chunk_delays=sorted(delay for call in counted for delay in call.delays),
        first_delays=sorted(call.delays[0] for call in counted),
        rpc_delays=sorted(pool.called[call.seed] - call.sent for call in counted),
    )


async def measure(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        settings = Settings(
            listen="127.0.0.1:0",
            decode_workers=1,
            limits=LimitSettings(max_streams=2 * max(options.streams)),
            voices=VoiceSettings(url=folder),
        )
        pool = RecordingPool(options.step_ms / 1e3)
        server = await stack.enter_async_context(running_server(settings, pool=pool))
        clients = ClientProcesses([server.address], options.clients, run_user)
        await asyncio.to_thread(clients.__enter__)
        stack.callback(clients.close)
        first = 0
        print(HEADINGS)
        for streams in options.streams:
            found: dict[int, list[Load]] = {1: [], SHORT_SHARE: []}
            for share in (1, SHORT_SHARE) * options.repeats:
                shape = RequestShape(steps=max(1, options.steps // share), timesteps=10, chars=options.chars)
                requests = options.requests * (1 if share == 1 else SHORT_REQUESTS)
                users = closed_loop(streams, requests, shape, first=first, seed=1)
                first += sum(map(len, users))
                found[share].append(await run_load(pool, clients, users, shape))
            rows.append(row(*(min(loads, key=lambda one: one.thread_seconds) for loads in found.values())))
            print(line(rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--streams", type=integers, default=[16, 64, 128], help="counts of streams open at once")
    parser.add_argument("--step-ms", type=float, default=30.0, help="time between two chunks of a stream")
    parser.add_argument("--steps", type=int, default=60, help="steps of a long request, each of one chunk")
    parser.add_argument("--requests", type=int, default=1, help="long requests of each user, after one that warms up")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--clients", type=int, default=default_processes(), help="client processes")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each load, of which the cheapest counts")
    parser.add_argument("--json", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        rows = runner.run(measure(options))
    about = {"command": command(), "versions": versions("grpcio", "protobuf", "uvloop", "numpy", "pyzmq")}
    if options.json:
        options.json.write_text(json.dumps(about | {"rows": [asdict(one) for one in rows]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
