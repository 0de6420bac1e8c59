"""A listener who plays a stream at the speed of speech, and the text that was heard, read off the audio itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any

import numpy as np
from support.servers.sessions import SlowClient

from voxcpm_grpc.audio import pcm
from voxcpm_grpc.request import Request
from voxcpm_grpc.v1 import tts_pb2 as pb

KEY = 16  # samples by which a step of noise is recognized


class Inline(Executor):
    """Runs everything in the calling thread: a fake clock does not wait for others."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class Listener(SlowClient):
    """Plays audio as it arrives, without a gap where it can, and takes at most `buffer` seconds ahead.

    Audio that arrives between `stop` and the answer to the interrupt is not played.
    """

    def __init__(self, rate: int, buffer: float) -> None:
        super().__init__(10**9)
        self.answers: list[pb.Interrupted] = []
        self.flushed: list[str] = []
        self.sent = 0
        self._rate, self._buffer = rate, buffer
        self._played: list[tuple[float, int, int]] = []  # start, position and samples of the messages with audio
        self._ends = 0.0
        self._stopped = False
        self._drained = asyncio.Event()

    async def send(self, message: pb.AudioChunk) -> None:
        await super().send(message)
        self.sent = message.offset_samples + message.sample_count
        now = asyncio.get_running_loop().time()
        if message.HasField("flush_done"):
            self.flushed.append(message.flush_done.tag)
        if message.HasField("interrupted"):
            self.answers.append(message.interrupted)
            self._stopped = False
        if message.sample_count and not self._stopped:
            start = max(now, self._ends)
            self._played.append((start, message.offset_samples, message.sample_count))
            self._ends = start + message.sample_count / self._rate
            self._drained.clear()
            ahead = self._ends - now - self._buffer
            if ahead > 0:
                with_stop = asyncio.ensure_future(self._drained.wait())
                await asyncio.wait([with_stop], timeout=ahead)
                with_stop.cancel()

    def position(self) -> int:
        """The position in the stream up to which it was played until now."""
        now = asyncio.get_running_loop().time()
        for start, offset, samples in reversed(self._played):
            if start <= now:
                return offset + min(samples, int((now - start) * self._rate))
        return 0

    def stop(self) -> None:
        """Drop all audio that was not played."""
        now = asyncio.get_running_loop().time()
        self._played = [one for one in self._played if one[0] <= now]
        self._ends, self._stopped = now, True
        self._drained.set()


@dataclass(frozen=True)
class Sound:
    """A step of noise in the audio of a stream: the character of the text that it stands for.

    begin, end: its samples in the stream
    char: index in the text of the request
    is_last: True for the last step of the request
    """

    request: Request
    begin: int
    end: int
    char: int
    is_last: bool


def sounds(
    audio: np.ndarray, requests: Sequence[Request], speech: Callable[[Request, int], np.ndarray], char_steps: int
) -> list[Sound]:
    """The steps of the fake engine in the audio of a stream, int16 [n] at the rate of the engine, in order."""
    steps: dict[bytes, tuple[Request, int, np.ndarray]] = {}
    for request in requests:
        for step in range(len(request.text) * char_steps):
            samples = pcm.s16(speech(request, step))
            steps[samples[:KEY].tobytes()] = (request, step, samples)
    found: list[Sound] = []
    at = 0
    while at < len(audio):
        known = steps.get(audio[at : at + KEY].tobytes())
        if known is None:
            assert not audio[at], "neither a step nor the silence that fills a frame"
            at += 1
            continue
        request, step, samples = known
        there = audio[at : at + len(samples)]
        same = int(np.argmin(np.append(there == samples[: len(there)], False)))
        last = step == len(request.text) * char_steps - 1 and same == len(samples)
        found.append(Sound(request, at, at + same, step // char_steps, last))
        at += same
    return found
