"""Measure the CPU time of a chunk and of an RPC in the one thread of a front, its memory, and the delay through it.

    python -m benchmarks.front --streams 16,64,128 --step-ms 30 --name here
    python -m benchmarks.front --streams 64,128,256 --step-ms 160 --variants plain,keys+metrics --name paced

Whole servers run in this process, one for each of `--variants`: `plain`, or `keys` (API keys), `metrics` (metrics for
Prometheus) or both. The engine of each, in a process of its own, makes 160 ms of audio for every stream at a fixed
rate, all in one message, as real engines do; `--step-ms 160` paces streams at real time. Clients in other processes
keep that many streams open: a user sends a request as soon as the one before it has ended. Each row needs two loads, of
long and of short requests; their CPU times give the cost of a chunk and the cost of an RPC. The cheapest of `--repeats`
counts, because other work on the host can only add to it; the variants take turns. The command writes front-NAME.json,
.md and .png into `--out`.

    python -m benchmarks.front --auto --cores 2,4,16 --engines 1,2,4 --name auto

With `--auto` it measures the number of fronts instead that a server chooses for so many cores and engines, and the
numbers around it: the first audio of requests at random times, `--rate` a second for each engine. The server runs on
the first of the host's cores, and the clients on the others if there are some. It starts nothing after `--budget`
seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Self

from benchmarks.front import choice, paced_engine, page
from benchmarks.front.calls import TimedCall, run_user
from benchmarks.front.memory import PeakMemory, resident_bytes
from benchmarks.front.rows import HEADINGS, Load, Row, line, row
from benchmarks.measuring.environment import command, versions
from benchmarks.measuring.flags import add_output_flags, command_parser, integers, words
from benchmarks.serving.clients import HEAD_START, ClientProcesses, default_processes
from benchmarks.serving.requests import RequestShape, UserRequests, closed_loop
from voxcpm_grpc.aio.event_loops import loop_factory
from voxcpm_grpc.events import Event
from voxcpm_grpc.pool.engine_call import WAIT_SECONDS, EngineCall
from voxcpm_grpc.pool.engine_pool import WINDOW_CHUNKS, EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.request import Request
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.settings.operation import MetricsSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.security import AuthSettings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_server.app import running_server
from voxcpm_server.auth import keys

SHORT_SHARE = 10  # steps of a long request for each step of a short one
SHORT_REQUESTS = 5  # short requests of a user for each long one
WARM_UP, WARM_UP_TEXT = RequestShape(steps=2, timesteps=10, chars=110), 1_000_000  # a text of no other request
COLLECT_SECONDS = 0.2  # after the clients are done, until the front has ended the last RPCs


class RecordingPool(EnginePool):
    """Records when the front calls the pool, by the seed of the request."""

    def __init__(self, step_seconds: float) -> None:
        make = partial(EngineProcess, paced_engine.MakePaced(step_seconds))
        super().__init__(LocalEngines({"engine": make}))
        self.called: dict[int, float] = {}

    def generate(
        self,
        request: Request,
        *,
        window: int = WINDOW_CHUNKS,
        first_limit: int | None = None,
        seconds_left: float | None = None,
        max_wait: float = WAIT_SECONDS,
    ) -> EngineCall[Event]:
        self.called[request.sampling.seed] = time.perf_counter()
        return super().generate(
            request,
            window=window,
            first_limit=first_limit,
            seconds_left=seconds_left,
            max_wait=max_wait,
        )


@dataclass(frozen=True, slots=True)
class Variant:
    """A server of the comparison, with clients that are connected to it."""

    name: str
    pool: RecordingPool
    clients: ClientProcesses

    @classmethod
    async def started(cls, name: str, options: argparse.Namespace, stack: AsyncExitStack) -> Self:
        """Start a server and its clients, which `stack` ends."""
        parts = set(name.split("+"))
        if unknown := parts - {"plain", "keys", "metrics"}:
            raise SystemExit(f"--variants has {unknown.pop()!r}; each is plain, keys, metrics or keys+metrics")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "keys.toml"
        settings = Settings(
            listen="127.0.0.1:0",
            decode_workers=1,
            limits=LimitSettings(
                max_streams=2 * max(options.streams),
                max_streams_per_caller=0,
                max_streams_per_connection=0,
                trim_leading_silence_seconds=0,  # every chunk counts, and its first samples are a time
            ),
            voices=VoiceSettings(url=str(folder)),
            auth=AuthSettings(keys=file if "keys" in parts else None),
            metrics=MetricsSettings(listen="127.0.0.1:0" if "metrics" in parts else None),
        )
        key = keys.create("benchmark", file) if "keys" in parts else None
        pool = RecordingPool(options.step_ms / 1e3)
        server = await stack.enter_async_context(running_server(settings, pool=pool))
        clients = ClientProcesses([server.address], options.clients, run_user, api_key=key)
        await asyncio.to_thread(clients.__enter__)
        stack.callback(clients.close)
        return cls(name, pool, clients)

    async def run(self, users: Sequence[UserRequests], shape: RequestShape) -> Load:
        """Run a load, and measure this process, which does nothing but serve it."""
        began, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
        async with PeakMemory() as memory:
            calls: list[TimedCall] = await asyncio.to_thread(self.clients.run, users, shape)
        await asyncio.sleep(COLLECT_SECONDS)
        thread_seconds = time.thread_time() - thread
        counted = [call for call in calls if call.counts]
        return Load(
            streams=len(users),
            rpcs=len(calls),
            chunks=sum(call.chunks for call in calls),
            seconds=time.perf_counter() - began - COLLECT_SECONDS - HEAD_START,
            thread_seconds=thread_seconds,
            other_seconds=time.process_time() - process - thread_seconds,
            peak_bytes=memory.peak,
            chunk_delays=sorted(delay for call in counted for delay in call.delays),
            first_delays=sorted(call.delays[0] for call in counted),
            rpc_delays=sorted(self.pool.called[call.seed] - call.sent for call in counted),
        )


async def measure(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    async with AsyncExitStack() as stack:
        variants = [await Variant.started(name, options, stack) for name in options.variants]
        first = 0
        for variant in variants:  # loads what the first calls need
            await variant.run(closed_loop(1, 1, WARM_UP, first=WARM_UP_TEXT, seed=1), WARM_UP)
        idle = resident_bytes()
        print(HEADINGS)
        for streams in options.streams:
            found: dict[tuple[str, int], list[Load]] = {}
            for _, share, variant in itertools.product(range(options.repeats), (1, SHORT_SHARE), variants):
                shape = RequestShape(steps=max(1, options.steps // share), timesteps=10, chars=options.chars)
                requests = options.requests * (1 if share == 1 else SHORT_REQUESTS)
                users = closed_loop(streams, requests, shape, first=first, seed=1)
                first += sum(map(len, users))
                found.setdefault((variant.name, share), []).append(await variant.run(users, shape))
            for variant in variants:
                long, short = (_cheapest(found[variant.name, share]) for share in (1, SHORT_SHARE))
                rows.append(row(variant.name, long, short, idle_bytes=idle if len(variants) == 1 else None))
                print(line(rows[-1]), flush=True)
    return rows


def _cheapest(loads: Sequence[Load]) -> Load:
    return min(loads, key=lambda load: load.thread_seconds)


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--streams", type=integers, default=[16, 64, 128], help="counts of streams open at once")
    parser.add_argument("--step-ms", type=float, default=30.0, help="time between two chunks of a stream")
    parser.add_argument("--steps", type=int, default=60, help="steps of a long request, each of one chunk")
    parser.add_argument("--requests", type=int, default=1, help="long requests of each user, after one that warms up")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--clients", type=int, default=default_processes(), help="client processes")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each load, of which the cheapest counts")
    parser.add_argument(
        "--variants", type=words, default=["plain"], help="servers to compare, such as plain,keys+metrics"
    )
    auto = parser.add_argument_group("the number of fronts")
    auto.add_argument("--auto", action="store_true", help="measure the number of fronts that a server chooses")
    auto.add_argument("--cores", type=integers, default=[2, 4, 16, 32], help="processor cores of the server")
    auto.add_argument("--engines", type=integers, default=[1, 2, 4], help="paced engines")
    auto.add_argument("--rate", type=float, default=90.0, help="requests a second for each engine")
    auto.add_argument("--core-rate", type=float, default=20.0, help="most requests a second for each core")
    auto.add_argument("--seconds", type=float, default=3.0, help="length of the load of each row")
    auto.add_argument("--budget", type=float, default=600.0, help="seconds after which no row is begun")
    add_output_flags(parser)
    options = parser.parse_args()
    if options.auto:
        choice.publish(choice.measure(options), options)
        return
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        rows = runner.run(measure(options))
    table = {
        "command": command(),
        "versions": versions("grpcio", "protobuf", "uvloop", "numpy", "pyzmq", "prometheus-client"),
        "step_ms": options.step_ms,
        "rows": [asdict(one) for one in rows],
    }
    page.publish(table, options.out, f"front-{options.name}")


if __name__ == "__main__":
    main()
