"""Values from which `replies` builds messages."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from enum import Enum

from voxcpm_grpc.events import Finished, FinishReason
from voxcpm_grpc.request import MAX_SEED, ModelInfo
from voxcpm_server.values.inputs import TurnConfig


class CutReason(Enum):
    """The reason why a segment ends at its last character."""

    SENTENCE = "sentence"
    PAUSE = "pause"
    CLAUSE = "clause"
    LIMIT = "limit"
    FLUSH = "flush"
    UNREAD = "unread"  # the model ended the speech before the text


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of text that the model speaks at once.

    text: clean and stripped; as it is spoken once the speaker has prepared it
    spaced: True if white space stands before it in the caller's text
    start, end: range of the caller's text since the turn opened, in code points; text between the ranges of two
        segments is not speakable
    source: the caller's text in that range, without markup if the turn is normalised
    ends: end of each character of `source` in the caller's text; empty if they stand side by side from `start` on
    cut: None while more text of the segment may arrive
    undivided: ranges of `source` that are heard as a whole, because a lexicon replaced them
    turn_config: the settings of the turn
    arrives: True if its text is known only when its speech has ended
    """

    turn: int
    index: int
    text: str
    spaced: bool
    start: int
    end: int
    cut: CutReason | None
    source: str
    turn_config: TurnConfig
    undivided: tuple[tuple[int, int], ...] = ()
    ends: tuple[int, ...] = ()
    arrives: bool = False

    def with_next_seed(self) -> Segment:
        """The segment for another attempt."""
        sampling = self.turn_config.sampling
        sampling = replace(sampling, seed=(sampling.seed + 1) % (MAX_SEED + 1))
        return replace(self, turn_config=replace(self.turn_config, sampling=sampling))

    @property
    def key(self) -> tuple[int, int]:
        """Its turn and its index there."""
        return self.turn, self.index

    def place(self, length: int) -> int:
        """The end of the first characters of `source` in the caller's text."""
        return self.ends[length - 1] if length and self.ends else self.start + length

    def place_of(self, index: int) -> int:
        """The start of a character of `source` in the caller's text."""
        return self.ends[index] - 1 if self.ends else self.start + index


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """The end of the text that a listener has heard.

    turn: the turn of the last sample heard; text of later turns was not heard
    input_end: end in the caller's text since that turn opened, in code points
    estimated: True if the listener was within a segment, so that the end is that of the probable word
    """

    turn: int
    input_end: int
    estimated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WordTime:
    """The time of a word of the caller's text.

    turn, segment: of the word
    input_start, input_end: range in the caller's text since the turn opened
    start, end: positions in the stream, in samples
    estimated: True if no aligner has found the word in the speech
    """

    turn: int
    segment: int
    text: str
    input_start: int
    input_end: int
    start: int
    end: int
    estimated: bool


class WarningKind(Enum):
    SHORT_RECORDING = "short_recording"
    CLIPPED_RECORDING = "clipped_recording"
    NOISY_RECORDING = "noisy_recording"
    LANGUAGE = "language"
    TRUNCATED_RECORDING = "truncated_recording"
    CANCELLED_CHANNELS = "cancelled_channels"
    RECORDING_LEVEL = "recording_level"
    WORD_TIMES = "word_times"
    TRANSCRIPT = "transcript"
    CONTINUITY = "continuity"


@dataclass(frozen=True, slots=True)
class RequestWarning:
    """A doubt about a request that is carried out."""

    kind: WarningKind
    message: str


class EndReason(Enum):
    """The reason why a stream or a segment ended without the engine finishing it."""

    INTERRUPTED = "interrupted"
    IDLE = "idle"
    NOTHING_TO_SAY = "nothing_to_say"


@dataclass(slots=True, kw_only=True)
class Summary:
    """Counters of a stream, updated while it runs.

    began, first_text, first_segment: seconds of time.monotonic(); None if it has not happened
    first_audio: likewise, when the first audio of a segment is sent
    first_audible: likewise, when a listener who plays audio as soon as it is sent hears the first audible sample
    queue: seconds that the first segment waited for a slot
    engine: seconds of engine time of all segments
    speaks: True once the model has made audio
    trimmed: samples of silence at the starts of turns that were left out
    continuations: times that another engine went on with the stream
    left_unread: segments whose speech the model ended before it had read their text
    """

    began: float
    first_text: float | None = None
    first_segment: float | None = None
    first_audio: float | None = None
    first_audible: float | None = None
    queue: float | None = None
    engine: float = 0.0
    speaks: bool = False
    trimmed: int = 0
    continuations: int = 0
    left_unread: int = 0
    reason: FinishReason | EndReason = FinishReason.STOP
    turns: int = 0
    segments: int = 0
    chars: int = 0
    steps: int = 0
    cached_tokens: int = 0

    def on_made(self, event: Finished) -> None:
        """Record the work of a segment, or of an attempt at it."""
        self.steps += event.steps
        self.engine += event.engine_seconds

    @property
    def queue_seconds(self) -> float | None:
        """The wait of the first segment for a slot, which may go on; None without a segment."""
        if self.queue is not None or self.first_segment is None:
            return self.queue
        return time.monotonic() - self.first_segment

    @property
    def first_audio_seconds(self) -> float | None:
        """The time from the first segment to its audio; None without audio."""
        return between(self.first_segment, self.first_audio)

    @property
    def first_audible_seconds(self) -> float | None:
        """The time from the first segment to its first audible sample; None without one."""
        return between(self.first_segment, self.first_audible)


def between(begin: float | None, end: float | None) -> float | None:
    """The seconds from one time to another; None if one of them is not known."""
    return None if begin is None or end is None else end - begin


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSummary:
    """A model of the server. `serving` is True if an engine of it takes requests."""

    info: ModelInfo
    is_default: bool
    serving: bool
    presets: tuple[str, ...]
    default_voice: str
    engines: int
    engines_ready: int
