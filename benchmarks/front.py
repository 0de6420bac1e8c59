"""The cost of a chunk and of an RPC to the one thread of a front, and the time they take to pass it.

    python -m benchmarks.front --streams 16,64,128 --step-ms 30 --json front.json

A whole server runs in this process, on an engine in a process of its own that makes 160 ms of audio for every stream on
a clock, all in one message, as real engines do. Real clients in other processes keep that many streams open; a user
asks anew when the last request has ended. Each row takes two loads, of long and of short requests, whose CPU times tell
the cost of a chunk from that of an RPC. The best of `--repeats` counts: other work on the host only adds to it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import load, paced_engine
from benchmarks.burst import quantile, text
from benchmarks.hardware import command, versions
from benchmarks.load import Callers, Line, Speech, Task
from voxcpm_client import AsyncClient
from voxcpm_client.options import SpeechOptions
from voxcpm_grpc.pool.engine_pool import LEAD_CHUNKS, EnginePool, Stream
from voxcpm_grpc.pool.handle import ProcessHandle
from voxcpm_grpc.request import Event, Request
from voxcpm_grpc.settings.schema import LimitSettings, Settings, VoiceSettings
from voxcpm_server.app import running_server
from voxcpm_server.main import loop_factory

SHORT_SHARE = 10  # a short request has that many times fewer steps
SHORT_REQUESTS = 5  # short requests of a user for each long one
COLLECT_SECONDS = 0.2  # in which the ends of the last RPCs have passed the front


@dataclass(slots=True, kw_only=True)
class Heard:
    """A request, as its client saw it. `delays`: from the end of the engine's step to here, of each chunk, seconds."""

    seed: int
    counts: bool
    sent: float
    delays: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The cost of one load. Delays of an RPC: from before the client's call until the front's call of the pool."""

    streams: int
    rpcs: int
    chunks: int
    seconds: float
    thread_seconds: float  # CPU of the event loop's thread
    other_seconds: float  # CPU of the front's other threads, most of them gRPC's
    chunk_delays: list[float]
    first_delays: list[float]
    rpc_delays: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A count of streams. Delays are those of the long requests; `first` are their first chunks alone."""

    streams: int
    chunks_per_s: float
    chunk_us: float
    rpc_us: float
    thread_share: float
    others_share: float
    chunk_p50_ms: float
    chunk_p99_ms: float
    first_p50_ms: float
    first_p99_ms: float
    rpc_p50_ms: float
    rpc_p99_ms: float


class NotingPool(EnginePool):
    """Notes when a request of each seed comes."""

    def __init__(self, step_seconds: float) -> None:
        launch = lambda: ProcessHandle(paced_engine.MakePaced(step_seconds))  # noqa: E731 - a Launch
        super().__init__([launch])
        self.came: dict[int, float] = {}

    def generate(self, request: Request, *, lead_chunks: int = LEAD_CHUNKS) -> Stream[Event]:
        self.came[request.sampling.seed] = time.perf_counter()
        return super().generate(request, lead_chunks=lead_chunks)


async def speak_line(client: AsyncClient, line: Line, speech: Speech, start: float) -> list[Heard]:
    await asyncio.sleep(start - time.perf_counter())
    return [await _speak(client, task, speech) for task in line]


async def _speak(client: AsyncClient, task: Task, speech: Speech) -> Heard:
    heard = Heard(seed=task.serial, counts=task.counts, sent=time.perf_counter())
    options: SpeechOptions = {
        "min_steps": task.steps,
        "max_steps": task.steps,
        "seed": task.serial,
        "timeout": speech.patience,
    }
    async with client.speak(text(task.serial, speech.chars), **options) as stream:
        async for chunk in stream:
            if chunk.sample_count:
                heard.delays.append(paced_engine.age(chunk.audio))
    return heard


async def spoken(pool: NotingPool, callers: Callers, lines: Sequence[Line], speech: Speech) -> Load:
    """The lines, all at once, and what they cost this thread, which only waits for the clients beside serving them."""
    began, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
    heard: list[Heard] = await asyncio.to_thread(callers.speak, lines, speech)
    await asyncio.sleep(COLLECT_SECONDS)
    thread_seconds = time.thread_time() - thread
    counted = [one for one in heard if one.counts]
    return Load(
        streams=len(lines),
        rpcs=len(heard),
        chunks=sum(len(one.delays) for one in heard),
        seconds=time.perf_counter() - began - COLLECT_SECONDS - load.HEAD_START,
        thread_seconds=thread_seconds,
        other_seconds=time.process_time() - process - thread_seconds,
        chunk_delays=sorted(delay for one in counted for delay in one.delays),
        first_delays=sorted(one.delays[0] for one in counted),
        rpc_delays=sorted(pool.came[one.seed] - one.sent for one in counted),
    )


def row(long: Load, short: Load) -> Row:
    """Two loads of as many streams, of which thread = chunks * chunk + rpcs * rpc."""
    scale = long.chunks * short.rpcs - short.chunks * long.rpcs
    chunk = (long.thread_seconds * short.rpcs - short.thread_seconds * long.rpcs) / scale
    rpc = (long.chunks * short.thread_seconds - short.chunks * long.thread_seconds) / scale
    of = {"chunk": long.chunk_delays, "first": long.first_delays, "rpc": long.rpc_delays}
    return Row(
        streams=long.streams,
        chunks_per_s=long.chunks / long.seconds,
        chunk_us=chunk * 1e6,
        rpc_us=rpc * 1e6,
        thread_share=long.thread_seconds / long.seconds,
        others_share=long.other_seconds / long.seconds,
        **{f"{name}_p{p}_ms": quantile(delays, p / 100) * 1e3 for name, delays in of.items() for p in (50, 99)},
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
        pool = NotingPool(options.step_ms / 1e3)
        server = await stack.enter_async_context(running_server(settings, pool=pool))
        callers = Callers([server.address], options.clients, speak_line)
        await asyncio.to_thread(callers.__enter__)
        stack.callback(callers.close)
        first = 0
        print(HEADINGS)
        for streams in options.streams:
            found: dict[int, list[Load]] = {1: [], SHORT_SHARE: []}
            for share in (1, SHORT_SHARE) * options.repeats:
                speech = Speech(steps=max(1, options.steps // share), timesteps=10, chars=options.chars)
                requests = options.requests * (1 if share == 1 else SHORT_REQUESTS)
                lines = load.users(streams, requests, speech, first=first, seed=1)
                first += sum(map(len, lines))
                found[share].append(await spoken(pool, callers, lines, speech))
            rows.append(row(*(min(loads, key=lambda one: one.thread_seconds) for loads in found.values())))
            print(line(rows[-1]), flush=True)
    return rows


HEADINGS = (
    f"{'streams':>7} {'chunks/s':>8} {'a chunk':>9} {'an RPC':>9} {'thread':>6} {'others':>6}"
    f" {'chunk p50':>9} {'p99':>9} {'first p50':>9} {'p99':>9} {'RPC p50':>9} {'p99':>9}"
)


def line(row: Row) -> str:
    """A row as it is printed under HEADINGS."""
    return (
        f"{row.streams:7d} {row.chunks_per_s:8.0f} {row.chunk_us:6.1f} us {row.rpc_us:6.0f} us {row.thread_share:6.2f}"
        f" {row.others_share:6.2f} {row.chunk_p50_ms:6.1f} ms {row.chunk_p99_ms:6.1f} ms {row.first_p50_ms:6.1f} ms"
        f" {row.first_p99_ms:6.1f} ms {row.rpc_p50_ms:6.1f} ms {row.rpc_p99_ms:6.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    counts = lambda words: [int(word) for word in words.split(",")]  # noqa: E731
    parser.add_argument("--streams", type=counts, default=[16, 64, 128], help="counts of streams open at once")
    parser.add_argument("--step-ms", type=float, default=30.0, help="time between two chunks of a stream")
    parser.add_argument("--steps", type=int, default=60, help="chunks of a long request")
    parser.add_argument("--requests", type=int, default=1, help="long requests of each stream, after a warm-up")
    parser.add_argument("--chars", type=int, default=110, help="characters of each text")
    parser.add_argument("--clients", type=int, default=load.processes(), help="processes")
    parser.add_argument("--repeats", type=int, default=3, help="of each load, of which the cheapest counts")
    parser.add_argument("--json", type=Path, help="write the table here too")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        rows = runner.run(measure(options))
    about = {"command": command(), "versions": versions("grpcio", "protobuf", "uvloop", "numpy", "pyzmq")}
    if options.json:
        options.json.write_text(json.dumps(about | {"rows": [asdict(one) for one in rows]}, indent=2) + "\n")


if __name__ == "__main__":
    main()
