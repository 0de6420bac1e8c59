"""Client processes that send the requests of a load.

Several processes share a load, because one Python process may be slower than the server. Each has a client of its own.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from multiprocessing.connection import Connection
from time import perf_counter
from types import TracebackType
from typing import Any, Self

from benchmarks.measuring.statistics import playback_end
from benchmarks.measuring.texts import text
from benchmarks.serving.recordings import recording
from benchmarks.serving.requests import Call, PlannedRequest, RequestShape, UserRequests
from voxcpm_client import AsyncClient, SpeechError
from voxcpm_client.values.options import SpeechOptions

CONNECT_SECONDS = 60.0
CALL_SECONDS = 300.0  # timeout of a call
WORD_SECONDS = 0.02  # between two words of a text that arrives in pieces
HEAD_START = 0.3  # seconds from the order to the client processes to the first request

RunUser = Callable[[AsyncClient, Sequence[Any], Any, float], Awaitable[list[Any]]]
"""Sends the requests of one user, and returns their outcomes.

Its arguments are the client, the requests, the parameters of `ClientProcesses.run`, and the time of the clock at which
the load starts. Client processes import it by its name, so it must not live in a `__main__`.
"""


def default_processes() -> int:
    """The number of client processes beside a server on this host."""
    return max(1, min(8, (os.cpu_count() or 2) // 2))


class ClientProcesses:
    """Client processes that stay connected while the block runs, for one load after another.

    targets: addresses, which the processes take in turn. run_user: sends the requests of one user; by default each
    request is a `PlannedRequest`, the parameters are a `RequestShape`, and each outcome is a `Call`. api_key: the key
    of all clients. Raises RuntimeError if a process fails.
    """

    def __init__(
        self, targets: Sequence[str], processes: int, run_user: RunUser | None = None, *, api_key: str | None = None
    ) -> None:
        self._run_user = run_user or _run_user
        self._api_key = api_key
        self._targets = [targets[index % len(targets)] for index in range(processes)]
        self._pipes: list[Connection] = []
        self._children: list[Any] = []

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        try:
            for target in self._targets:
                ours, theirs = context.Pipe()
                child = context.Process(
                    target=_client, args=(theirs, target, self._api_key, self._run_user), daemon=True
                )
                child.start()
                theirs.close()
                self._pipes.append(ours)
                self._children.append(child)
            for pipe in self._pipes:
                _receive(pipe, CONNECT_SECONDS)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def run(self, users: Sequence[Sequence[Any]], parameters: Any, *, timeout: float = CALL_SECONDS) -> list[Any]:
        """Send the requests of all users, and return their outcomes once all have ended.

        parameters: the same for all requests. timeout: most seconds of one request. The outcomes of a user are in order
        and stand together.
        """
        count = len(self._pipes)
        start = perf_counter() + HEAD_START
        for index, pipe in enumerate(self._pipes):
            pipe.send((users[index::count], parameters, start))
        longest = max(len(requests) for requests in users) * timeout
        return [outcome for pipe in self._pipes for outcome in _receive(pipe, longest)]

    def close(self) -> None:
        for child in self._children:
            child.kill()
            child.join()


def _receive(pipe: Connection, seconds: float) -> list[Any]:
    if not pipe.poll(seconds):
        raise RuntimeError(f"a client process sent no result within {seconds:.0f} s")
    try:
        return pipe.recv()
    except EOFError:
        raise RuntimeError("a client process failed; its traceback is above") from None


def _client(pipe: Connection, target: str, api_key: str | None, run_user: RunUser) -> None:
    asyncio.run(_serve(pipe, target, api_key, run_user))


async def _serve(pipe: Connection, target: str, api_key: str | None, run_user: RunUser) -> None:
    async with AsyncClient(target, timeout=CONNECT_SECONDS, retries=0, api_key=api_key) as client:
        await client.model_info()  # connects
        pipe.send([])
        gc.freeze()  # a collection over all modules would delay every user of this process
        while True:
            users, parameters, start = await asyncio.to_thread(pipe.recv)
            outcomes = await asyncio.gather(*(run_user(client, requests, parameters, start) for requests in users))
            pipe.send([outcome for of_user in outcomes for outcome in of_user])


async def _run_user(client: AsyncClient, requests: UserRequests, shape: RequestShape, start: float) -> list[Call]:
    calls: list[Call] = []
    due = start
    for request in requests:
        if request.at is not None:
            due = start + request.at
        elif request.after_playback and calls[-1].times:
            due = playback_end(calls[-1].times, calls[-1].seconds)
        elif calls:
            due = perf_counter()
        await asyncio.sleep(due - perf_counter())
        calls.append(await _call(client, request, shape, due))
    return calls


async def _words(text: str, call: Call) -> AsyncIterator[str]:
    """Yield the words of a text one after another. The call counts from the last one."""
    words = re.findall(r"\S+\s*", text)
    for word in words[:-1]:
        yield word
        await asyncio.sleep(WORD_SECONDS)
    call.due = call.sent = perf_counter()
    yield words[-1]


async def _call(client: AsyncClient, request: PlannedRequest, shape: RequestShape, due: float) -> Call:
    call = Call(due=due, sent=perf_counter(), counts=request.counts)
    if request.upload:
        return await _upload(client, request.serial, call)
    steps = request.steps
    options: SpeechOptions = {
        "min_steps": steps,
        "max_steps": steps,
        "segmentation": shape.segmentation,
        "seed": request.serial,
        "timeout": CALL_SECONDS,
    }
    if shape.timesteps:
        options["timesteps"] = shape.timesteps
    if shape.voices:
        options["voice"] = shape.voices[request.serial % len(shape.voices)]
    words = text(request.serial, shape.chars)
    try:
        async with client.speak(_words(words, call) if request.in_pieces else words, **options) as stream:
            async for chunk in stream:
                if chunk.sample_count:
                    call.times.append(perf_counter())
                    call.seconds.append(chunk.seconds)
    except SpeechError as error:
        call.code = error.code
        return call
    if stream.summary is None or stream.summary.generated_steps != steps or stream.summary.segments != 1:
        call.code = "WRONG_LENGTH"
    else:
        call.server_ttfb = stream.summary.time_to_first_audio_seconds
        audible = stream.summary.time_to_first_audible_seconds
        call.silent = 0.0 if audible is None else audible - call.server_ttfb
    return call


async def _upload(client: AsyncClient, serial: int, call: Call) -> Call:
    recorded = await asyncio.to_thread(recording, serial)
    call.sent = perf_counter()
    try:
        await client.add_reference(recorded)
    except SpeechError as error:
        call.code = error.code
    call.upload = perf_counter() - call.due
    return call
