"""The messages of Generate streams."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from support.servers.waiting import NEVER_SECONDS

from voxcpm_grpc.v1 import tts_pb2 as pb


def texts(*parts: str) -> Iterator[pb.GenerateRequest]:
    """A text message for each part."""
    return iter([pb.GenerateRequest(text=part) for part in parts])


class PausedStream:
    """Sends a text and a flush, waits for `resume`, and sends another text."""

    def __init__(self, first: str = "Hello there.", second: str = "Goodbye.") -> None:
        self._first = first
        self._second = second
        self._resumed = threading.Event()

    def messages(self) -> Iterator[pb.GenerateRequest]:
        """The messages of one stream. Every call is for another stream; `resume` resumes all."""
        yield pb.GenerateRequest(text=self._first)
        yield pb.GenerateRequest(flush=pb.Flush())
        self._resumed.wait(NEVER_SECONDS)
        yield pb.GenerateRequest(text=self._second)

    def resume(self) -> None:
        self._resumed.set()
