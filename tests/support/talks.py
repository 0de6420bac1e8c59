"""What callers say on a stream, at once or in their own time."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from support.waiting import NEVER_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb


def text(*pieces: str) -> Iterator[pb.GenerateRequest]:
    return iter([pb.GenerateRequest(text=piece) for piece in pieces])


class SlowTalk:
    """Something is said and flushed, and something else once all who talk so `go_on`."""

    def __init__(self, first: str = "Hello there.", second: str = "Goodbye.") -> None:
        self._first, self._second = first, second
        self._going_on = threading.Event()

    def messages(self) -> Iterator[pb.GenerateRequest]:
        """For one stream; every call gives those for another one."""
        yield pb.GenerateRequest(text=self._first)
        yield pb.GenerateRequest(flush=pb.Flush())
        self._going_on.wait(NEVER_SECONDS)
        yield pb.GenerateRequest(text=self._second)

    def go_on(self) -> None:
        self._going_on.set()
