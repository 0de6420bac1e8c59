"""Serve paced engines through a number of fronts, on some of the processor cores, until SIGINT.

    python -m benchmarks.front.paced_server --engines 2 --fronts 4 --cores 0-15 --step-ms 30

Prints `listening on HOST:PORT` when the server is ready.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from benchmarks.front.paced_engine import MakePaced
from benchmarks.measuring.flags import command_parser
from voxcpm_grpc.aio.event_loops import loop_factory
from voxcpm_grpc.logs import set_up
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.pool.engines.local import EngineProcess, LocalEngines
from voxcpm_grpc.settings.http import HttpSettings
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.settings.schema import Settings
from voxcpm_grpc.settings.text import TextSettings
from voxcpm_grpc.settings.voices import VoiceSettings
from voxcpm_server.app import running_server
from voxcpm_server.fronts import running_fronts

MAX_STREAMS = 100_000
STOP_SECONDS = 10.0


@contextmanager
def started(flags: Mapping[str, object]) -> Iterator[str]:
    """Run this program in a process of its own, with flags by their names without dashes; yield its address."""
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.front.paced_server", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("listening on "):
            raise SystemExit("the server did not start; its messages are above")
        yield line.split()[2]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def settings(fronts: int, voices: str, http: str = "") -> Settings:
    return Settings(
        listen="127.0.0.1:0",
        fronts=fronts,
        drain_delay_seconds=0,
        drain_seconds=1,
        decode_workers=1,
        log_level="warning",
        limits=LimitSettings(
            max_streams=MAX_STREAMS,
            max_streams_per_caller=0,
            max_streams_per_connection=0,
            trim_leading_silence_seconds=0,
        ),
        text=TextSettings(start_normalizer=False),
        voices=VoiceSettings(url=voices),
        http=HttpSettings(listen=http or None),
    )


async def serve(made: Settings, engines: int, step_seconds: float) -> None:
    main = asyncio.current_task()
    assert main is not None
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stopped.set)
    names = [f"engine paced:{number}" for number in range(engines)]
    paced = LocalEngines({name: partial(EngineProcess, MakePaced(step_seconds), name=name) for name in names})
    if made.several_fronts:
        async with running_fronts(made, engines=[paced]) as fronts:
            await _until(stopped, fronts.address)
    else:
        async with running_server(made, pool=EnginePool(paced)) as server:
            await _until(stopped, server.address)


async def _until(stopped: asyncio.Event, address: str) -> None:
    print(f"listening on {address}", flush=True)
    await stopped.wait()


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--engines", type=int, default=1, help="number of engines")
    parser.add_argument("--fronts", type=int, default=1, help="number of fronts")
    parser.add_argument("--http", default="", metavar="HOST:PORT", help="address of the HTTP gateway; default: none")
    parser.add_argument("--cores", default="", help="cores of the server, such as 0-3; default: all")
    parser.add_argument("--step-ms", type=float, default=30.0, help="time between two chunks of a stream")
    options = parser.parse_args()
    if options.cores:
        first, _, last = options.cores.partition("-")
        os.sched_setaffinity(0, range(int(first), int(last or first) + 1))
    with tempfile.TemporaryDirectory() as voices, asyncio.Runner(loop_factory=loop_factory()) as runner:
        made = settings(options.fronts, voices, options.http)
        set_up(made.log)
        runner.run(serve(made, options.engines, options.step_ms / 1e3))


if __name__ == "__main__":
    main()
