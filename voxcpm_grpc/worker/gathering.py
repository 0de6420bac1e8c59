"""Audio that its listener does not need yet: an engine reports several chunks of it at once.

A report costs a front, and a message to the client costs it more, whatever their length.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import numpy as np

from voxcpm_grpc.errors import VoxCPMError
from voxcpm_grpc.events import NOT_SPOKEN, AudioChunk, Event
from voxcpm_grpc.request import Request

RESERVE_SECONDS = 1.0  # seconds of audio, without which a listener gets each chunk at once
GATHERED_SECONDS = 1.0  # seconds of audio in one report, at most
WAIT_SECONDS = 0.25  # seconds that a chunk waits for others, at most


class Gathering:
    """Chunks of one stream that wait for each other.

    The listener is taken to play audio as soon as it is made. Chunks wait only while that leaves RESERVE_SECONDS to
    play, and the first one of an engine never does: it tells a front that the engine has survived the request. The last
    one comes alone, because another engine would make it again.

    window: chunks that the engine may make before the client takes some; at most half of them wait
    step_seconds: audio of a chunk
    """

    def __init__(self, request: Request, window: int, step_seconds: float, now: float) -> None:
        self._heard_seconds = request.heard(step_seconds)
        self._plays_until = now + request.lead_seconds
        self._most = max(1, min(int(GATHERED_SECONDS / step_seconds), window // 2))
        # Streams that began together report in different steps.
        self._room = 1 + zlib.crc32(request.id.encode()) % self._most
        self._begun = False
        # Of the chunks that wait: their samples, with room for more, what another engine needs of each, and the first.
        self._samples = np.empty(0, np.float32)
        self._steps: list[bytes] = []
        self._first, self._silent = 0, NOT_SPOKEN
        self._due = 0.0

    def add(self, result: Event | VoxCPMError, now: float) -> Sequence[Event | VoxCPMError]:
        """Take the next result of the stream. Returns what is to be reported at once."""
        if not isinstance(result, AudioChunk) or not self._may_wait(result, now):
            return [*self.take(), result]
        if not self._steps:
            self._first, self._samples = result.index, np.empty((self._most, len(result.samples)), np.float32)
        self._samples[len(self._steps)] = result.samples  # the engine uses the memory of the chunk again
        self._steps.append(result.steps)
        self._silent = result.silent
        return self.take() if len(self._steps) == self._room else []

    def _may_wait(self, chunk: AudioChunk, now: float) -> bool:
        reserve = self._plays_until - now
        self._plays_until = max(self._plays_until, now) + self._heard_seconds
        begun, self._begun = self._begun, True
        if self._steps:
            return not chunk.last
        self._due = now + min(WAIT_SECONDS, reserve - RESERVE_SECONDS)
        return begun and self._due > now and self._most > 1 and not chunk.last

    @property
    def due(self) -> float:
        """The time at which chunks that wait are to be reported; infinite if none do."""
        return self._due if self._steps else math.inf

    def take(self) -> list[AudioChunk]:
        """The chunks that wait, as one; nothing if there are none."""
        if not (steps := self._steps):
            return []
        self._steps, self._room = [], self._most
        samples, complete = self._samples[: len(steps)].reshape(-1), all(steps)
        known = b"".join(steps) if complete else b""
        return [AudioChunk(index=self._first, samples=samples, steps=known, silent=self._silent, chunks=len(steps))]
