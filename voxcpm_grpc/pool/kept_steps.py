"""The steps of a stream that a front keeps, for an engine that goes on with it."""

from __future__ import annotations

from voxcpm_grpc.request import NOT_SPOKEN, AudioChunk, History


class KeptSteps:
    """Collects the steps of chunks as they arrive, about half a kilobyte each.

    complete: False if a chunk had none, so that no other engine can go on
    """

    def __init__(self) -> None:
        self.complete = True
        self.chunks = 0
        self._steps = bytearray()
        self._silent = NOT_SPOKEN

    def add(self, chunk: AudioChunk) -> None:
        """Keep the steps of the next chunk, unless it is the last one: another engine makes it again, and ends."""
        if chunk.last:
            return
        self.complete = self.complete and bool(chunk.steps)
        self._steps += chunk.steps
        self._silent = chunk.silent
        self.chunks += 1

    @property
    def history(self) -> History | None:
        """The history for the next engine; None if it begins."""
        if not self.chunks:
            return None
        return History(steps=bytes(self._steps), chunks=self.chunks, silent=self._silent)
