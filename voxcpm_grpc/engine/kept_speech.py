"""The speech of ended requests that keep it, on its way to the host."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from msgspec.structs import replace

from voxcpm_grpc.engine.host_copy import HostCopy
from voxcpm_grpc.request import Finished, VoicePart


class KeptSpeech:
    """The ends of requests, each with the copies of its arrays, in order. `tracks` are those of the model."""

    def __init__(self, tracks: tuple[str, ...]) -> None:
        self._tracks = tracks
        self._ends: deque[tuple[str, Finished, Mapping[str, HostCopy]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._ends)

    def add(self, id: str, end: Finished, arrays: Mapping[str, HostCopy]) -> None:
        self._ends.append((id, end, arrays))

    def collect(self, *, wait: bool) -> list[tuple[str, Finished]]:
        """The ends whose arrays have arrived, or all with `wait`."""
        found: list[tuple[str, Finished]] = []
        while self._ends and (wait or all(copy.ready() for copy in self._ends[0][2].values())):
            id, end, copies = self._ends.popleft()
            content = {name: copy.wait() for name, copy in copies.items()}
            found.append((id, replace(end, speech=VoicePart(content=content, tracks=self._tracks))))
        return found
