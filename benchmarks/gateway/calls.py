"""The calls of users, by gRPC and by HTTP, in a client process."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass

import h11

from benchmarks.measuring.texts import text
from voxcpm_client import AsyncClient

PART_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Task:
    """The users of one client process.

    first: number of the first user, of all processes
    rounds: rounds that count
    """

    target: str
    http: tuple[str, int]
    users: int
    first: int
    rounds: int
    chars: int
    max_steps: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds from the start of a call to its first audio, by both ways, of one text in one round."""

    grpc: float
    http: float


def run_users(task: Task) -> list[Sample]:
    """Run the users of a client process, and return their samples."""
    return asyncio.run(_run(task))


async def _run(task: Task) -> list[Sample]:
    async with AsyncClient(task.target) as client:
        users = (_user(task, client, task.first + index) for index in range(task.users))
        return [sample for found in await asyncio.gather(*users) for sample in found]


async def _user(task: Task, client: AsyncClient, number: int) -> list[Sample]:
    connection = HttpConnection(await asyncio.open_connection(*task.http))
    samples: list[Sample] = []
    try:
        for turn in range(task.rounds + 1):
            serial = 1 + number * (task.rounds + 1) + turn
            calls = {
                "grpc": lambda serial=serial: _by_grpc(task, client, serial),
                "http": lambda serial=serial: _by_http(task, connection, serial),
            }
            order = ("grpc", "http") if (turn + number) % 2 else ("http", "grpc")
            found = {name: await calls[name]() for name in order}
            if turn:
                samples.append(Sample(**found))
    finally:
        connection.close()
    return samples


async def _by_grpc(task: Task, client: AsyncClient, serial: int) -> float:
    began, first = time.perf_counter(), 0.0
    words = text(serial, task.chars)
    async with client.speak(words, seed=serial, max_steps=task.max_steps, max_wait=0.0, sample_rate=24000) as stream:
        async for chunk in stream:
            if chunk.audio and not first:
                first = time.perf_counter() - began
    return first


async def _by_http(task: Task, connection: HttpConnection, serial: int) -> float:
    began = time.perf_counter()
    body = {
        "input": text(serial, task.chars),
        "model": "tts-1",
        "response_format": "pcm",
        "seed": serial,
        "extra_params": {"max_steps": task.max_steps},
    }
    return await connection.post("/v1/audio/speech", json.dumps(body).encode()) - began


class HttpConnection:
    """A connection of HTTP/1.1 that is kept for one request after another."""

    def __init__(self, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
        self._reader, self._writer = streams
        self._http = h11.Connection(h11.CLIENT)

    def close(self) -> None:
        self._writer.close()

    async def post(self, path: str, body: bytes) -> float:
        """Send JSON, and read the response to its end. Returns the time of the clock at the first byte of its body."""
        headers = [("host", "localhost"), ("content-type", "application/json"), ("content-length", str(len(body)))]
        parts = (h11.Request(method="POST", target=path, headers=headers), h11.Data(body), h11.EndOfMessage())
        self._writer.write(b"".join(self._http.send(part) or b"" for part in parts))
        first, status = 0.0, 0
        while True:
            event = self._http.next_event()
            match event:
                case h11.NEED_DATA:
                    self._http.receive_data(await self._reader.read(PART_BYTES))
                case h11.Response():
                    status = event.status_code
                case h11.Data() if status != 200:
                    raise RuntimeError(f"the gateway answers {status}: {bytes(event.data)!r}")
                case h11.Data():
                    first = first or time.perf_counter()
                case h11.EndOfMessage():
                    self._http.start_next_cycle()
                    return first
                case h11.ConnectionClosed():
                    raise RuntimeError("the gateway closed the connection")
