"""Values from which `replies` builds messages."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from voxcpm_grpc.request import FinishReason


class CutReason(Enum):
    """The reason why a segment ends at its last character."""

    SENTENCE = "sentence"
    PAUSE = "pause"
    CLAUSE = "clause"
    LIMIT = "limit"
    FLUSH = "flush"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of text that the model speaks at once.

    text: clean and stripped
    spaced: True if white space stands before it in the caller's text
    start, end: range of the caller's text since the turn opened, in code points; text between the ranges of two
        segments is not speakable
    """

    turn: int
    index: int
    text: str
    spaced: bool
    start: int
    end: int
    cut: CutReason


class WarningKind(Enum):
    SHORT_RECORDING = "short_recording"
    CLIPPED_RECORDING = "clipped_recording"
    NOISY_RECORDING = "noisy_recording"
    LANGUAGE = "language"


@dataclass(frozen=True, slots=True)
class RequestWarning:
    """A doubt about a request that is carried out."""

    kind: WarningKind
    message: str


class EndReason(Enum):
    """The reason why a stream or a segment ended without the engine finishing it."""

    INTERRUPTED = "interrupted"
    IDLE = "idle"


@dataclass(slots=True, kw_only=True)
class Summary:
    """Counters of a stream, updated while it runs.

    began, first_text, first_segment, first_audio: seconds of time.monotonic(); None if it has not happened
    queue: seconds that the first segment waited for a slot
    engine: seconds of engine time of all segments
    """

    began: float
    first_text: float | None = None
    first_segment: float | None = None
    first_audio: float | None = None
    queue: float | None = None
    engine: float = 0.0
    reason: FinishReason | EndReason = FinishReason.STOP
    turns: int = 0
    segments: int = 0
    chars: int = 0
    steps: int = 0
    cached_tokens: int = 0
