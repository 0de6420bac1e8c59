"""Measure the CPU time that a chunk takes in the code of a front, without gRPC, sockets and other processes.

    python -m benchmarks.front.chunk --streams 16,64

One thread decodes the reports of an engine, routes them to Generate sessions, and serializes the replies, as a front
does; the reports of all steps are encoded before. The engine is faster than its listeners, so that messages grow as
long as they may. The cheapest of `--repeats` counts, because other work on the host can only add to it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.front.paced_engine import INFO, STEP
from benchmarks.measuring.environment import command
from benchmarks.measuring.flags import command_parser, integers
from voxcpm_grpc.aio.event_loops import freeze_objects, loop_factory
from voxcpm_grpc.events import Admitted, AudioChunk, Event, Finished, FinishReason
from voxcpm_grpc.ipc import encoding
from voxcpm_grpc.ipc.messages import CallEvent, Command, Report, Submit
from voxcpm_grpc.machine.memory import keep_freed_memory
from voxcpm_grpc.pool.adapter_catalog import AdapterNames
from voxcpm_grpc.pool.directory import EngineListener
from voxcpm_grpc.pool.engine_pool import EnginePool
from voxcpm_grpc.request import Adapter, Conditioning, Request, VoicePart
from voxcpm_grpc.settings.limits import LimitSettings
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_grpc.worker.gathering import Gathering
from voxcpm_server.app import KEPT_BLOCK, KEPT_BYTES
from voxcpm_server.speech.session import Session
from voxcpm_server.values.inputs import GenerateInput, Text
from voxcpm_server.wire.generate import RequestReader

STEP_SECONDS = 0.01  # seconds of a step of the engine
TURNS = 24  # of the event loop, in which all work ends that the reports of a step cause
LIMITS = LimitSettings()


class PreparedEngine:
    """The connection to an engine whose reports are given as they would arrive. `submitted` are ids of requests."""

    def __init__(self) -> None:
        self.submitted: list[str] = []
        self._arrived: asyncio.Queue[bytes] = asyncio.Queue()

    def post(self, command: Command) -> None:
        if isinstance(command, Submit):
            self.submitted.append(command.request.id)
        encoding.encode(command)

    async def reports(self) -> AsyncGenerator[list[Report]]:
        while True:
            yield encoding.decode_reports(await self._arrived.get())

    def arrive(self, data: bytes) -> None:
        self._arrived.put_nowait(data)

    def end(self) -> None:
        """Nothing is on the way."""

    def close(self) -> None:
        """Nothing is held."""


class PreparedEngines:
    """A PreparedEngine as the only one of a pool. Implements Engines."""

    def __init__(self, engine: PreparedEngine) -> None:
        self.names = AdapterNames()
        self._engine = engine
        self._listener: EngineListener | None = None

    def watch(self, listener: EngineListener) -> None:
        self._listener = listener

    async def start(self) -> None:
        assert self._listener is not None
        self._listener.on_ready("engine", INFO, 0)

    def connect(self, engine: str) -> PreparedEngine:
        return self._engine

    def drain(self, engine: str, *, restart: bool) -> None:
        raise NotImplementedError

    def resume(self, engine: str) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing runs."""


async def chunk_us(streams: int, steps: int) -> float:
    """The CPU time of a chunk in us, where so many streams have so many chunks each."""
    engine = PreparedEngine()
    pool = EnginePool(PreparedEngines(engine))
    await pool.start()
    sent = 0

    async def send(message: pb.AudioChunk) -> None:
        nonlocal sent
        message.SerializeToString()
        sent += message.sample_count
        await asyncio.sleep(0)

    reader = RequestReader(INFO, LIMITS, _no_lora)
    tasks = [asyncio.create_task(_session(pool, reader, send)) for _ in range(streams)]
    await _settle()
    ids = engine.submitted
    assert len(ids) == streams
    samples = np.sin(np.arange(INFO.samples_per_step, dtype=np.float32) / 20) / 2
    admitted = Admitted(queue_seconds=0.0, cached_tokens=0, prompt_tokens=0)
    chunks = [AudioChunk(index=index, samples=samples, steps=STEP) for index in range(steps)]
    gathering, reported = Gathering(Request(id="", text=""), steps, INFO.step_seconds, 0.0), list[Event]([admitted])
    for step, chunk in enumerate(chunks):
        reported += [one for one in gathering.add(chunk, step * STEP_SECONDS) if isinstance(one, AudioChunk)]
    reported += gathering.take()
    messages = [encoding.encode([CallEvent(id, one) for id in ids]) for one in reported]
    engine.arrive(messages[0])
    await _settle()
    began = time.thread_time()
    for message in messages[1:]:
        engine.arrive(message)
        await _settle()
    seconds = time.thread_time() - began
    finished = Finished(reason=FinishReason.STOP, steps=steps, engine_seconds=1.0)
    engine.arrive(encoding.encode([CallEvent(id, finished) for id in ids]))
    await asyncio.gather(*tasks)
    await pool.close()
    assert sent == streams * steps * INFO.samples_per_step
    return seconds / streams / steps * 1e6


async def _settle() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _no_lora(name: str) -> Adapter:
    raise NotImplementedError


async def _session(
    pool: EnginePool, reader: RequestReader, send: Callable[[pb.AudioChunk], Coroutine[Any, Any, None]]
) -> None:
    async def encode(samples: np.ndarray) -> VoicePart:
        raise NotImplementedError

    async def no_more() -> AsyncIterator[GenerateInput]:
        return
        yield

    one = Session(
        reader.generate_config(pb.GenerateConfig()),
        Conditioning(reference=VoicePart(content={"latents": np.zeros((1, 4, 64), np.float32)}, tracks=("latents",))),
        "",
        pool=pool,
        encode=encode,
        limits=LIMITS,
        request_id="",
        remaining=lambda: None,
        send=send,
    )
    await one.run(Text("One sentence."), no_more())


async def measure(options: argparse.Namespace) -> dict[int, float]:
    """The least CPU time of a chunk in us, by the number of streams."""
    freeze_objects()
    keep_freed_memory(block=KEPT_BLOCK, unused=KEPT_BYTES)
    found: dict[int, list[float]] = {streams: [] for streams in options.streams}
    for _ in range(options.repeats):
        for streams, times in found.items():
            times.append(await chunk_us(streams, options.steps))
    return {streams: min(times) for streams, times in found.items()}


def main() -> None:
    parser = command_parser(__doc__)
    parser.add_argument("--streams", type=integers, default=[16, 64], help="counts of streams")
    parser.add_argument("--steps", type=int, default=60, help="chunks of each stream")
    parser.add_argument("--repeats", type=int, default=10, help="measurements, of which the cheapest counts")
    parser.add_argument("--json", type=Path, help="file to write")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        found = runner.run(measure(options))
    for streams, microseconds in found.items():
        print(f"{streams:4d} streams: {microseconds:6.2f} us a chunk")
    if options.json:
        rows = [{"streams": streams, "chunk_us": microseconds} for streams, microseconds in found.items()]
        options.json.write_text(json.dumps({"command": command(), "rows": rows}))


if __name__ == "__main__":
    main()
