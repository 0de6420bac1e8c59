"""The times of a segment, from its submission to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import monotonic

from voxcpm_grpc.request import Admitted, Event, Finished
from voxcpm_server.wire.outputs import Segment


@dataclass(slots=True)
class SegmentTiming:
    """Times are seconds of time.monotonic(); None if it has not happened.

    queue_seconds: the wait for a slot, as the engine measured it
    first_audio: when the first audio reached the front
    error: the error of the segment; a CancelledError if it was interrupted, or if its stream ended before it
    """

    segment: Segment
    submitted: float = field(default_factory=monotonic)
    queue_seconds: float | None = None
    cached_tokens: int = 0
    prompt_tokens: int = 0
    first_audio: float | None = None
    steps: int = 0
    engine_seconds: float | None = None
    engine: str = ""
    ended: float = 0.0
    error: BaseException | None = None

    def on_event(self, event: Event) -> None:
        """Take note of an event other than the chunks after the first one."""
        match event:
            case Admitted():
                self.queue_seconds = event.queue_seconds
                self.prompt_tokens, self.cached_tokens = event.prompt_tokens, event.cached_tokens
            case Finished():
                self.steps, self.engine_seconds = event.steps, event.engine_seconds
            case _:
                self.first_audio = monotonic()
