"""What callers are told, free of protobuf: `convert` makes messages of it. Positions are samples at the output rate."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from voxcpm_grpc.audio import AudioFormat


class CutReason(Enum):
    """The reason for which a segment ends where it does."""

    SENTENCE = "sentence"
    PAUSE = "pause"
    CLAUSE = "clause"
    LIMIT = "limit"
    FLUSH = "flush"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of text the model speaks at once.

    `text` is clean and stripped; `spaced` says that the caller's text has whitespace before it. `start` and `end` are
    code points of the caller's input since the turn opened; the ranges of a turn's segments leave no gap but
    unspeakable text.
    """

    turn: int
    index: int
    text: str
    spaced: bool
    start: int
    end: int
    cut: CutReason


class EventKind(Enum):
    STARTED = "started"
    FINISHED = "finished"
    DROPPED = "dropped"


class EndReason(Enum):
    COMPLETE = "complete"
    MAX_STEPS = "max_steps"
    INTERRUPTED = "interrupted"
    IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEvent:
    kind: EventKind
    segment: Segment
    at: int
    reason: EndReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The stream as it really is, known once its first segment has a slot. `queue` in seconds.

    `voice` names what speaks, as the wire does: empty where the model chooses the voice.
    """

    request_id: str
    format: AudioFormat
    model: str
    fingerprint: str
    seed: int = 0
    voice: str = ""
    queue: float = 0.0


@dataclass(slots=True, kw_only=True)
class Summary:
    """Counted while the stream runs. Times in seconds; `wall` and the totals are filled in at the end."""

    reason: EndReason = EndReason.COMPLETE
    samples: int = 0
    bytes: int = 0
    turns: int = 0
    segments: int = 0
    chars: int = 0
    steps: int = 0
    queue: float | None = None
    first_audio: float | None = None
    text_to_audio: float | None = None
    engine: float = 0.0
    wall: float = 0.0
    cached_tokens: int = 0
