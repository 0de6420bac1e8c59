"""What one RPC sends: numbered, placed, encoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import numpy as np

from voxcpm_grpc.audio import AudioFormat, OutputPipeline
from voxcpm_grpc.v1 import tts_pb2 as pb
from voxcpm_server import wire
from voxcpm_server.voices.voice import Voice
from voxcpm_server.wire.outputs import EndReason, EventKind, Header, Segment, SegmentEvent, Summary

with suppress(ImportError):  # needed by some streams only, but loading it in the middle of one would hold up the others
    import soxr  # noqa: F401


class ChunkWriter:
    """The messages of one RPC, in order, for one task to use: gRPC does not bear two writes at once.

    `header` is asked once, when message 0 is made. Audio comes at `native_rate` and leaves at the rate of the header's
    format. Events keep the exact position of the signal, so with a resampler, which holds some back, they can wait for
    the message that they fall on.
    """

    def __init__(
        self,
        send: Callable[[pb.AudioChunk], Awaitable[None]],
        header: Callable[[], Header],
        native_rate: int,
        format: AudioFormat,
    ) -> None:
        self._send_message = send
        self._header = header
        self._pipeline = OutputPipeline(native_rate, format)
        self._rates = native_rate, format.sample_rate
        self._sequence = 0
        self._offset = 0
        self._bytes = 0
        self._turn_start = 0  # position at which the resampler began anew
        self._turn_samples = 0  # pushed since then, at the native rate
        self._events: deque[SegmentEvent] = deque()
        self._turn = self._segment = 0

    @property
    def offset(self) -> int:
        """Samples sent so far."""
        return self._offset

    @property
    def started(self) -> bool:
        return self._sequence > 0

    async def begin(self) -> None:
        """Send the header by itself, if nothing was sent yet."""
        if not self.started:
            await self._send()

    async def audio(self, samples: np.ndarray, turn: int = 0, segment: int = 0) -> None:
        """float32 [n] at the native rate; sends nothing while the resampler holds it all back."""
        self._turn, self._segment = turn, segment
        self._turn_samples += len(samples)
        data, count = self._pipeline.push(samples)
        if count:
            await self._send(data, count)

    def segment_started(self, segment: Segment) -> None:
        """The next audio is this segment's."""
        self._turn, self._segment = segment.turn, segment.index
        self._events.append(SegmentEvent(kind=EventKind.STARTED, segment=segment, at=self._position()))

    async def segment_finished(self, segment: Segment, reason: EndReason) -> None:
        """All audio of this segment was given."""
        at = self._position()
        self._events.append(SegmentEvent(kind=EventKind.FINISHED, segment=segment, at=at, reason=reason))
        if at <= self._offset:
            await self._send()

    async def flush(self, tag: str | None) -> None:
        """Let out all audio given so far; answers a Flush unless the tag is None."""
        data, count = self._pipeline.end_turn()
        at = self._offset + count
        answer = {} if tag is None else {"flush_done": wire.flush_done(tag, at)}
        self._restart(at)
        if count or answer or self._events:
            await self._send(data, count, settled=True, **answer)

    async def interrupted(self, tag: str, dropped: Iterable[Segment]) -> None:
        """Forget what was given and not sent, and say so."""
        self._pipeline.discard()
        self._restart(self._offset)
        self._events.clear()
        for segment in dropped:
            reason = EndReason.INTERRUPTED
            self._events.append(SegmentEvent(kind=EventKind.DROPPED, segment=segment, at=self._offset, reason=reason))
        await self._send(settled=True, interrupted=wire.interrupted(tag, self._offset))

    async def voice(self, voice: Voice, reused: bool) -> None:
        """The handle of a voice that is now durable."""
        await self._send(handle=wire.handle(voice, reused))

    async def finish(self, summary: Summary) -> None:
        """The last message."""
        data, count = self._pipeline.flush()
        summary.samples = self._offset + count
        summary.bytes = self._bytes + len(data)
        await self._send(data, count, settled=True, summary=wire.summary(summary))

    def _position(self) -> int:
        source, target = self._rates
        return self._turn_start + (2 * self._turn_samples * target + source) // (2 * source)

    def _restart(self, at: int) -> None:
        self._turn_start, self._turn_samples = at, 0

    async def _send(self, audio: bytes = b"", samples: int = 0, *, settled: bool = False, **extras: Any) -> None:
        """`settled`: every waiting event falls on this message, for the signal ends here."""
        if not self._sequence:
            extras["header"] = wire.header(self._header())
        if self._events:
            due = self._due(self._offset + samples, settled)
            extras["segment_events"] = [wire.segment_event(event) for event in due]
        message = wire.chunk(
            audio,
            sequence=self._sequence,
            offset=self._offset,
            samples=samples,
            turn=self._turn,
            segment=self._segment,
            **extras,
        )
        self._sequence += 1
        self._offset += samples
        self._bytes += len(audio)
        await self._send_message(message)

    def _due(self, end: int, settled: bool) -> Iterable[SegmentEvent]:
        while self._events:
            event = self._events[0]
            passed = event.at < end if event.kind is EventKind.STARTED else event.at <= end
            if not (passed or settled):
                return
            yield self._events.popleft()
