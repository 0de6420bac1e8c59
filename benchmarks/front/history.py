"""Measure what the steps behind a chunk cost an engine and a front: the history with which another engine goes on.

    python -m benchmarks.front.history --step-bytes 0,512

The steps of a stream travel in the message of its audio, and the front keeps them until the segment ends. Nothing is
served: one thread encodes, decodes and delivers `--chunks` chunks of 160 ms, one for each stream, as the processes do
for one step of an engine. The sizes take turns, and the cheapest of `--repeats` counts, because other work on the host
can only add to it. CPU times are those of a chunk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from benchmarks.front.paced_engine import INFO
from benchmarks.measuring.environment import command
from benchmarks.measuring.flags import command_parser, integers
from voxcpm_grpc.events import AudioChunk, Event
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc.messages import CallEvent, Cancel, Report
from voxcpm_grpc.pool.engine_call import EngineCall, KeptSteps

ROUNDS = 50  # of each measurement: one takes a few tenths of a millisecond


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU time of a chunk in us, and the bytes of its message.

    encode_us: in the engine. decode_us, deliver_us: in the front. keep_us: the part of deliver_us that keeps the steps.
    """

    encode_us: float
    decode_us: float
    deliver_us: float
    keep_us: float
    message_bytes: float


def reports(chunks: int, step_bytes: int) -> list[Report]:
    """The reports of one step: a chunk of each stream."""
    samples = np.sin(np.arange(INFO.samples_per_step, dtype=np.float32) / 20) / 2
    chunk = AudioChunk(index=0, samples=samples, steps=bytes(step_bytes))
    return [CallEvent(f"{number:032x}", chunk) for number in range(chunks)]


def cpu_us(work: Callable[[], object], chunks: int) -> float:
    """The CPU time of a chunk in us, where `work` handles `chunks` of them."""
    began = time.process_time()
    for _ in range(ROUNDS):
        work()
    return (time.process_time() - began) / ROUNDS / chunks * 1e6


def measured(chunks: int, step_bytes: int) -> Cost:
    """One measurement. Needs an event loop, because calls belong to one."""
    sent = reports(chunks, step_bytes)
    data = encoding.encode(sent)
    bodies = [report.body for report in encoding.decode_reports(data) if isinstance(report, CallEvent)]
    received = [body for body in bodies if isinstance(body, AudioChunk)]
    calls = [EngineCall[Event]("call", lambda call: Cancel(call.id), window=ROUNDS) for _ in received]
    numbered = [[AudioChunk(index=i, samples=one.samples, steps=one.steps) for one in received] for i in range(ROUNDS)]
    kept = [KeptSteps() for _ in received]
    delivered, added = iter(numbered), iter(numbered)

    def deliver() -> None:
        for call, chunk in zip(calls, next(delivered), strict=True):
            call.deliver(chunk)

    def keep() -> None:
        for steps, chunk in zip(kept, next(added), strict=True):
            steps.add(chunk)

    return Cost(
        encode_us=cpu_us(lambda: encoding.encode(sent), chunks),
        decode_us=cpu_us(lambda: encoding.decode_reports(data), chunks),
        deliver_us=cpu_us(deliver, chunks),
        keep_us=cpu_us(keep, chunks),
        message_bytes=len(data) / chunks,
    )


async def measure(options: argparse.Namespace) -> dict[int, Cost]:
    """The least of each cost, by the bytes of a step."""
    found: dict[int, list[Cost]] = {size: [] for size in options.step_bytes}
    for _ in range(options.repeats):
        for size, costs in found.items():
            costs.append(measured(options.chunks, size))
    names = [one.name for one in fields(Cost)]
    return {
        size: Cost(**{name: min(getattr(one, name) for one in costs) for name in names})
        for size, costs in found.items()
    }


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--step-bytes", type=integers, default=[0, 512], help="bytes of a step; VoxCPM2 has 512")
    parser.add_argument("--chunks", type=int, default=64, help="chunks of a message, one for each stream")
    parser.add_argument("--repeats", type=int, default=25, help="measurements, of which the cheapest counts")
    parser.add_argument("--json", type=Path, help="file to write")
    options = parser.parse_args()
    costs = asyncio.run(measure(options))
    print(f"{'a step':>8} {'encode':>9} {'decode':>9} {'deliver':>9} {'keep':>9} {'message':>9}")
    for size, cost in costs.items():
        times = (cost.encode_us, cost.decode_us, cost.deliver_us, cost.keep_us)
        print(f"{size:6d} B", *(f"{us:6.2f} us" for us in times), f"{cost.message_bytes:7.0f} B")
    if options.json:
        rows = [{"step_bytes": size, **asdict(cost)} for size, cost in costs.items()]
        options.json.write_text(json.dumps({"command": command(), "rows": rows}))


if __name__ == "__main__":
    main()
